"""FFA-LoRA, FedSA-LoRA, RoLoRA and FLoRA in the world of one number: minimise ½ a (W + B A - b)², A = 1, B = W = 0."""

from itertools import chain

import numpy as np
import pytest
from fedapps.strategies import SGD, Flora, Int8
from fedapps.strategies.aggregation import StreamingMean
from flwr.app import ConfigRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from method_worlds import AdaptedPoints, Adapters, Q, Quadratics, registered, run_method

import fedapps
from fedapps.config.parsing import ConfigError, parse

SHORT = {"compression": "bf16"}
QUIET = {"dp": "local", "dp-noise": 0.0, "dp-clip": 1e9}
SHARED = ("layer.a", "layer.b")


def steps(a, b, w, node, *, train="ab", count=2, rate=0.1):
    """Gradient descent on the factors of one node, by hand."""
    (curvature, optimum) = Q[node]
    for _ in range(count):
        slope = curvature * (w + b * a - optimum)
        a, b = a - rate * slope * b * ("a" in train), b - rate * slope * a * ("b" in train)
    return a, b


def lora(method, task=Adapters, **keys):
    return run_method(method, task, **keys)


def test_the_mean_of_the_factors_is_not_that_of_the_products():
    run = lora("fedit")
    assert [run.values(name)[0] for name in SHARED] == pytest.approx([1.0495, -0.065], abs=2e-6)
    products = [b * a for a, b in (steps(1, 0, 0, node) for node in (0, 1))]
    assert pytest.approx(-0.068218, abs=2e-6) == 1.0495 * -0.065
    assert np.mean(products) == pytest.approx(-0.074225, abs=2e-6)
    assert run.arrays[1] == lora("fedavg").arrays[1]


def test_ffa_lora_is_fedavg_of_b():
    run = lora("ffa-lora")
    assert run.values("layer.a") == [1.0, 1.0]
    assert run.values("layer.b") == pytest.approx([-0.065, -0.10725], abs=2e-6)
    assert run.values("layer.b") == run_method("fedavg", Quadratics).values("theta")  # B A - b with A = 1


def test_fedsa_lora_keeps_b_on_the_nodes():
    first, run = lora("fedsa-lora", rounds=1), lora("fedsa-lora")
    assert first.private("layer.b") == pytest.approx([0.38, -0.51], abs=2e-6)
    assert run.values("layer.a") == pytest.approx([1.0495, 1.179647], abs=2e-6)
    assert run.private("layer.b") == pytest.approx([0.702547, -0.745253], abs=2e-6)
    assert all(names == {"layer.a"} for names in (set(arrays) for arrays in run.arrays))


def test_rolora_trains_b_and_a_in_turns():
    run, a, b = lora("rolora", rounds=4), 1.0, 0.0
    for number, (found_a, found_b) in enumerate(zip(run.values("layer.a"), run.values("layer.b"), strict=True)):
        trained = [steps(a, b, 0.0, node, train="ba"[number % 2]) for node in (0, 1)]
        a, b = (float(np.mean(values)) for values in zip(*trained, strict=True))
        assert (found_a, found_b) == pytest.approx((a, b), abs=1e-12)
    assert run.values("layer.b")[0] == pytest.approx(-0.065, abs=2e-6)  # the first round is that of FFA-LoRA
    assert run.values("layer.b")[1] == run.values("layer.b")[0]


def test_flora_folds_the_mean_of_the_products():
    run, w = lora("flora"), 0.0
    assert run.values("layer.w")[0] == pytest.approx(-0.074225, abs=2e-6)
    for found in run.values("layer.w"):
        w += float(np.mean([b * a for a, b in (steps(1.0, 0.0, w, node) for node in (0, 1))]))
        assert found == pytest.approx(w, abs=1e-12)
    assert [run.values(name) for name in SHARED] == [[1.0, 1.0], [0.0, 0.0]]


def test_flora_of_one_node_is_the_product_of_that_node():
    run = lora("flora", rounds=1, absent={(1, 1)})
    a, b = steps(1.0, 0.0, 0.0, 0)
    assert run.values("layer.w")[0] == pytest.approx(a * b, abs=1e-12)


def test_what_is_not_trained_is_neither_returned_nor_changed():
    for method, left_out in (("ffa-lora", ["layer.a"]), ("flora", ["layer.w"])):
        run = lora(method, rounds=1)
        sent = [(set(message["arrays"]), set(reply["arrays"])) for kind, _, message, reply in run.messages
                if kind == "train"]  # fmt: skip
        assert [down - up for down, up in sent] == [set(left_out)] * 2
        assert all(up < down for down, up in sent)


@pytest.mark.parametrize("method", ["fedit", "ffa-lora", "rolora", "fedsa-lora", "flora"])
@pytest.mark.parametrize("keys", [SHORT, QUIET], ids=str)
def test_compression_and_local_noise_see_what_is_returned(method, keys):
    """Replies in short numbers, or without noise, give nearly the same run."""
    plain, other = lora(method), lora(method, **keys)
    for one, two in zip(plain.arrays, other.arrays, strict=True):
        assert {name: array.item() for name, array in two.items()} == pytest.approx(
            {name: array.item() for name, array in one.items()}, rel=1e-2, abs=1e-6
        )


@pytest.mark.parametrize("compression", ["int8", "top-k"])
def test_flora_refuses_a_compression_that_keeps_errors(compression):
    with pytest.raises(ConfigError, match=f"compression = '{compression}': must be 'none' or 'bf16' with flora"):
        lora("flora", compression=compression)
    with pytest.raises(ValueError, match=r"compression = .*: cannot be used, because each round begins with new"):
        Flora(a="a", b="b", weight="w", compression=Int8())


@pytest.mark.parametrize("method", ["ffa-lora", "rolora", "fedsa-lora"])
def test_central_noise_is_added_to_what_is_returned(method):
    quiet = lora(method, dp="central-server", dp_noise=0.0, dp_clip=1e9)
    loud = lora(method, dp="central-server", dp_noise=1.0, dp_clip=0.1, dp_seeded=True)
    assert all(np.isfinite(array).all() for array in chain(*(found.values() for found in loud.arrays)))
    assert quiet.values("layer.a") == pytest.approx(lora(method).values("layer.a"), abs=1e-12)
    if method == "ffa-lora":
        assert loud.values("layer.a") == [1.0, 1.0]


def test_flora_with_central_noise_and_methods_without_adapters_are_refused():
    with pytest.raises(ValueError, match="it also takes the products of each node's adapters, without noise"):
        lora("flora", dp="central-server")
    for method in ("fedit", "ffa-lora", "rolora", "fedsa-lora", "flora"):
        with pytest.raises(ConfigError, match="its model has no adapters of low rank"):
            run_method(method, Quadratics)
    with pytest.raises(ConfigError, match=r"no adapters of low rank \(set text\.adapter = 'lora'\)"):
        parse({"task": "text", "methods": "ffa-lora", "text.source": "simulated"})
    with pytest.raises(ConfigError, match=r"flora\.ranks = '2,x': must be whole numbers from 1"):
        lora("flora(ranks='2,x')")


def test_nodes_of_a_lower_rank_return_the_rows_beyond_it_as_received():
    run = run_method("flora(ranks=1)", AdaptedPoints, rounds=1)
    messages = [(sent["arrays"], reply["arrays"]) for kind, _, sent, reply in run.messages if kind == "train"]
    for sent, reply in messages:
        changed = {name: reply[f"body.0.{name}"].numpy() != sent[f"body.0.{name}"].numpy() for name in "ab"}
        assert changed["a"].any(axis=1).tolist() == [True, False]
        assert changed["b"].any(axis=0).tolist() == [True, False]
        assert sent["body.0.a"].numpy()[1].any(), "zeros there would be an update, which local noise clips"
    for method, rank in (("flora(ranks=1)", 1.0), ("flora(ranks=8)", 2.0)):  # 2 is the rank of the model
        run = run_method(method, AdaptedPoints, rounds=1)
        ranks = [reply["metrics"]["flora.rank"] for kind, _, _, reply in run.messages if kind == "train"]
        assert ranks == [rank, rank]


def test_flora_adds_the_trained_factors_that_it_starts_from_to_the_weight(tmp_path):
    trained = lora("fedit", rounds=1, folder=tmp_path)
    with registered(Adapters):
        fedapps.load(tmp_path / "run").save(tmp_path / "model")
    run = lora("flora", rounds=1, start=str(tmp_path / "model"))
    product = trained.values("layer.a")[0] * trained.values("layer.b")[0]
    sent = next(message["arrays"] for kind, _, message, _ in run.messages if kind == "train")
    sent = {name: array.numpy().item() for name, array in sent.items()}
    assert sent == pytest.approx({"layer.a": trained.values("layer.a")[0], "layer.b": 0.0, "layer.w": product})


def folded(strategy, weight, replies):
    """What the strategy makes of factors [(a, b)] with equal weights."""
    from types import SimpleNamespace

    a, b = replies[0]
    strategy._current = {"w": weight, "a": a, "b": b}
    strategy.begin_round(1, strategy._current, ConfigRecord(), None)
    for a, b in replies:
        reply = SimpleNamespace(weight=1.0, arrays={"a": a, "b": b})
        strategy.fold(reply, StreamingMean())
        assert list(strategy.further_sizes(reply).values()) == pytest.approx([np.linalg.norm(b @ a)], abs=1e-6)
    mean = {"a": np.mean([a for a, _ in replies], axis=0), "b": np.mean([b for _, b in replies], axis=0)}
    return strategy.close_round(1, {"a": a, "b": b}, mean)


def test_the_sheet_of_two_nodes_with_different_directions():
    e1, e2 = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    closed = folded(Flora(a="a", b="b", weight="w"), np.zeros((2, 2)), [(e1, e1.T), (e2, e2.T)])
    assert closed["w"].tolist() == [[0.5, 0.0], [0.0, 0.5]]
    assert ((e1 + e2).T / 2 @ (e1 + e2) / 2).tolist() == [[0.25, 0.25], [0.25, 0.25]]  # the product of the means


def test_the_server_optimizer_takes_the_step_of_the_weight():
    one = np.ones((1, 1))
    strategy = Flora(a="a", b="b", weight="w", server_optimizer=SGD(0.5))
    assert folded(strategy, np.zeros((1, 1)), [(one, 2 * one), (one, 4 * one)])["w"] == [[0.5 * 3]]


NUMBERS = st.floats(-2, 2, width=32)


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_the_fold_is_the_mean_of_products_of_any_ranks(data):
    """Ranks r_k below the rank of the model, as zeros; with equal A it is the product of the means, too."""
    replies = []
    for rank in data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)):
        a, b = np.zeros((3, 4)), np.zeros((2, 3))
        a[:rank] = data.draw(arrays(np.float64, (rank, 4), elements=NUMBERS))
        b[:, :rank] = data.draw(arrays(np.float64, (2, rank), elements=NUMBERS))
        replies.append((a, b))
    weight = data.draw(arrays(np.float64, (2, 4), elements=NUMBERS))
    closed = folded(Flora(a="a", b="b", weight="w", scale=2.0), weight, replies)
    np.testing.assert_allclose(closed["w"], weight + 2 * np.mean([b @ a for a, b in replies], axis=0), atol=1e-9)
    assert sorted(closed["a"].ravel()) == sorted(replies[-1][0].ravel())
    assert not closed["b"].any()
    same = [(replies[0][0], b) for _, b in replies]
    closed = folded(Flora(a="a", b="b", weight="w"), weight, same)
    np.testing.assert_allclose(closed["w"], weight + np.mean([b for _, b in same], axis=0) @ same[0][0], atol=1e-9)
