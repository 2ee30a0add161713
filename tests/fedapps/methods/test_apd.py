"""A node with a decomposed model (APD, FedWeIT): exact equalities, counts of parameters, and errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from decomposed_nodes import PENALTIES, WEIGHTS, decomposition, initial, kept, knowledge, model_at, node
from fedapps.clients.state import ContextState
from fedapps.tasks.social.networks import GraphConvolutions
from flwr.app import ConfigRecord, RecordDict
from toy_nodes import SETTINGS, at, staged
from toy_nodes import node as plain_node
from toys import ToyTask, record_of, same_bits

from fedapps.methods.apd import Decomposition
from fedapps.methods.fedprox import Proximal
from fedapps.methods.fedweit import FedWeitPart, Knowledge
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method

# -- what it must be equal to ----------------------------------------------------------------------------------


def test_one_step_of_sgd_by_the_chain_rule(tmp_path):
    """θ = B σ(m) + A from σ = 2/3, A = B/3: each part moves by its share of the plain model's gradient."""
    batch = staged(1).stages[0]["train"]
    model = ToyTask().build_model()
    model.load_state_dict({n: torch.from_numpy(a) for n, a in initial([*WEIGHTS, "head.bias", "passes"]).items()})
    ToyTask().loss(model, batch).backward()
    gradient = model.encoder.weight.grad.numpy()
    base = initial()["encoder.weight"]

    client = node(tmp_path, l1=0.01, l1_mask=0.02)
    one_step = at(1, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.1)
    sent = client.train_round(initial(), one_step).arrays["encoder.weight"]
    np.testing.assert_allclose(sent, base - 0.1 * 2 / 3 * gradient, rtol=1e-4, atol=1e-6)
    parts = kept(client, 1)
    expected = base / 3 - 0.1 * (gradient + 0.01 * np.sign(base))
    np.testing.assert_allclose(parts["adaptive"][0, :4].reshape(2, 2), expected, rtol=1e-4, atol=1e-6)
    slope = 2 / 3 * (1 / 3) * (gradient * base).sum(1)
    np.testing.assert_allclose(parts["mask"][0, :2], np.log(2) - 0.1 * (slope + 0.02), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        parts["own"][0], initial(["head.bias"])["head.bias"] - 0.1 * model.head.bias.grad.numpy(), rtol=1e-4
    )


def test_with_all_units_sent_the_first_stage_of_fedweit_is_apd_bit_for_bit(tmp_path):
    apd = node(tmp_path / "a", **PENALTIES)
    weit = node(tmp_path / "w", "fedweit", mask_share=1.0, **PENALTIES)
    received = initial()
    for server_round in (1, 2, 3):
        mine = apd.train_round(received, at(server_round))
        other = weit.train_round(received, at(server_round))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        assert mine.metrics == other.metrics
        received = mine.arrays


def test_without_drift_later_stages_are_alike_too_and_the_past_is_untouched(tmp_path):
    apd, weit = node(tmp_path / "a"), node(tmp_path / "w", "fedweit", mask_share=1.0)
    received = initial()
    for server_round in (1, 2, 3):
        stage = server_round - 1
        mine = apd.train_round(received, at(server_round, stage))
        other = weit.train_round(received, at(server_round, stage))
        assert same_bits(mine.arrays, other.arrays)
        assert same_bits(kept(apd, server_round), kept(weit, server_round))
        received = mine.arrays


def test_an_untrained_node_is_the_received_model(tmp_path):
    """A round of no learning gives back what came, and evaluates as a plain node with the same model."""
    client, no_step = node(tmp_path), at(1, learning_rate=0.0)
    reply = client.train_round(initial(), no_step)
    assert same_bits(reply.arrays, initial())
    expected = plain_node(tmp_path / "plain", data=staged(1)).evaluate_round(initial(), no_step).metrics
    found = client.evaluate_round(initial(), no_step).metrics
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)


def test_fedprox_holds_the_base_alone(tmp_path):
    """Overwhelming µ at a learning rate of 1/µ: every step of SGD lands the base next to where it came from."""
    client = node(tmp_path, "apd", Proximal(1e3))
    sent = client.train_round(initial(), at(1, 0, optimizer="sgd", learning_rate=1e-3)).arrays
    free = node(tmp_path / "free")
    free.train_round(initial(), at(1, 0, optimizer="sgd", learning_rate=1e-3))
    for name in WEIGHTS:
        np.testing.assert_allclose(sent[name], initial()[name], atol=5e-3)
    np.testing.assert_allclose(kept(client, 1)["adaptive"], kept(free, 1)["adaptive"], atol=1e-3)
    assert np.abs(kept(client, 1)["adaptive"][0, :4] - initial()["encoder.weight"].ravel() / 3).max() > 1e-4


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_the_order_of_the_proximal_term_does_not_matter(tmp_path, kind):
    """The penalties of the decomposition stay, and so do both counts, whichever part comes first."""
    part = decomposition(kind, **PENALTIES)
    replies = []
    for folder, parts in (("one", [Proximal(0.5), part]), ("other", [part, Proximal(0.5)])):
        client = plain_node(tmp_path / folder, *parts, data=staged(1))
        client.train_round(initial(), at(1, 0))
        replies.append(client.train_round(initial(), at(2, 1)))
    assert same_bits(replies[0].arrays, replies[1].arrays)
    assert replies[0].metrics == replies[1].metrics
    without = node(tmp_path / "without", kind, Proximal(0.5))
    without.train_round(initial(), at(1, 0))
    assert not same_bits(without.train_round(initial(), at(2, 1)).arrays, replies[0].arrays)


def test_buffers_are_the_nodes_or_travel(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    assert int(client.private.load(2)["passes"]) == 4  # 2 epochs of 2 batches
    shared = client.train_round(initial([*WEIGHTS, "passes"]), at(2, 0)).arrays
    assert int(shared["passes"]) == 4
    assert "passes" not in client.private.load(3)


def test_the_current_stages_model_collects(tmp_path):
    seen = []

    class Collecting(ToyTask):
        def collect(self, model, data, *, seed):
            seen.append(model)
            return super().collect(model, data, seed=seed)

    node(tmp_path, task=Collecting()).evaluate_round(initial(), at(1, 0, collect=True))
    assert seen[0](torch.zeros(1, 2)).shape == (1, 1)


# -- how many parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "mu", "trained", "held"),
    [
        # 6 numbers in the weights, 3 units, 1 bias; 3 stages.
        ("apd", 0.0, 6 + 3 * 10, 6),
        ("apd", 0.1, 6 + 3 * 10, 12),
        ("fedweit", 0.0, 6 + 3 * 10 + 2 * 2 * 2, 6 + 12),
    ],
)
def test_parameters_are_counted(tmp_path, kind, mu, trained, held):
    node(tmp_path, kind).train_round(initial(), at(1, 0))
    borrowed = {"knowledge": knowledge(1)} if kind == "fedweit" else {}
    metrics = node(tmp_path, kind, Proximal(mu), **borrowed).train_round(initial(), at(2, 1)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (trained, held)


class Graphs(ToyTask):
    """The network of Elastic Transfer on one graph per example."""

    def build_model(self):
        return GraphConvolutions()

    def loss(self, model, batch):
        return (model(batch["x"], torch.eye(1).expand(len(batch["x"]), 1, 1)) - batch["y"]).square().mean()


@pytest.mark.parametrize(("kind", "trained"), [("apd", 39_176), ("fedweit", 39_257)])
def test_the_network_of_elastic_transfer_has_the_published_number_of_parameters(tmp_path, kind, trained):
    task, splits = Graphs(), {"train": {"x": torch.ones(2, 1, 7), "y": torch.ones(2)}}
    data = replace(ToyTask().data(1), splits=splits, stages=(splits,) * 4)
    weights = {n: p.detach().numpy() for n, p in task.build_model().named_parameters() if p.ndim > 1}
    borrowed = {"knowledge": Knowledge(1, ("a", "b", "c"), (weights,) * 3)} if kind == "fedweit" else {}
    node(tmp_path, kind, data=data, task=task).train_round(weights, at(1, 0))
    client = node(tmp_path, kind, data=data, task=task, **borrowed)
    metrics = client.train_round(weights, at(2, 1)).metrics
    assert metrics["trainable_parameters"] == trained


# -- what it refuses -------------------------------------------------------------------------------------------


def test_the_nodes_build_the_parts_from_the_options():
    def parts_of(label):
        return build_method(read_expression(label), {}).local_parts()

    assert parts_of("apd(mu=0.9,l1=0.3,drift=0.4)") == [Decomposition(0.3, 0.4), Proximal(0.9)]
    label = "fedweit(l1-adaptive=0.1,l1-mask=0.2,drift=1,mask-share=0.5)"
    assert parts_of(label) == [FedWeitPart(0.1, 1.0, 0.2, 0.5)]


def test_a_share_of_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"fedweit\.mask-share = 0\.0: must be a number above 0 and at most 1"):
        build_method(read_expression("fedweit(mask-share=0)"), {})


def test_a_bias_cannot_be_shared(tmp_path):
    with pytest.raises(ValueError, match=r"received head.bias: every stage has its own; only encoder.weight, head.we"):
        node(tmp_path).train_round(initial([*WEIGHTS, "head.bias"]), SETTINGS)


def content(models, **order):
    records = RecordDict({"fedweit": ConfigRecord(order)} if order else {})
    for index, arrays in enumerate(models):
        records[f"fedweit.knowledge.{index}"] = record_of(arrays)
    return records


def test_knowledge_is_read_from_a_message():
    assert Knowledge.read(RecordDict({"arrays": record_of(initial())})) == Knowledge()
    found = Knowledge.read(content([initial(), initial()], stage=2, keys=["a", "b"]))
    assert (found.stage, found.keys) == (2, ("a", "b"))
    assert all(same_bits(arrays, initial()) for arrays in found.adaptive)


def test_a_malformed_message_is_an_error():
    with pytest.raises(ValueError, match=r"fedweit\.knowledge\.1, of node b: must come as an ArrayRecord"):
        Knowledge.read(content([initial()], stage=2, keys=["a", "b"]))
    with pytest.raises(ValueError, match="fedweit stage = None, keys = None: must be an integer and a list"):
        Knowledge.read(content([], other=1))


@pytest.mark.parametrize(
    ("lent", "told"),
    [
        (Knowledge(1, ("a",), ({"tail": np.ones(1)},)), "what node a learned: 'tail' is no weight of the model"),
        (Knowledge(1, ("a",), ({"head.weight": np.ones(2)},)), r"'head.weight' is \[2\], not \[1, 2\]"),
        (Knowledge(2, ("a",), (initial(),)), "fedweit stage = 2: must be 1, as in the message's config"),
    ],
)
def test_knowledge_that_does_not_fit_is_an_error(tmp_path, lent, told):
    with pytest.raises(ValueError, match=told):
        node(tmp_path, "fedweit", knowledge=lent).train_round(initial(), at(1, 1))


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_parts_persist_across_rounds_and_stages(tmp_path, kind):
    received = initial()
    for server_round, stage in ((1, 0), (2, 0), (3, 1), (4, 1)):
        client = node(tmp_path, kind, mask_share=1.0, **PENALTIES)  # a new one for each message
        received = client.train_round(received, at(server_round, stage)).arrays
    first, second, third, fourth = (kept(client, r) for r in (1, 2, 3, 4))
    assert fourth["stages"].tolist() == [0, 1]
    assert [len(fourth[name]) for name in ("adaptive", "mask", "own", "old")] == [2, 2, 2, 1]
    assert not np.array_equal(first["adaptive"], second["adaptive"])
    assert np.array_equal(third["old"], fourth["old"])
    assert np.array_equal(fourth["own"][0], second["own"][0])
    assert not np.array_equal(fourth["adaptive"][0], second["adaptive"][0])
    assert np.array_equal(fourth["mask"][0], second["mask"][0]) == (kind == "fedweit")  # only APD goes on training it


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_earlier_stages_are_held_at_what_the_node_had_trained_not_at_the_mean(tmp_path, kind):
    """A step of SGD by the drift alone: A_1 ← A_1 − η 2 λ (B − B') σ(m_1), with the received B and the own B'."""
    client = node(tmp_path, kind, drift=0.5)
    client.train_round(initial(), at(1, 0))
    before = kept(client, 1)
    received = {name: array + 0.25 for name, array in initial().items()}
    client.train_round(received, at(2, 1, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.1))
    after = kept(client, 2)
    gates = (1 / (1 + np.exp(-before["mask"][0])))[[0, 0, 1, 1, 2, 2]]
    np.testing.assert_allclose(after["old"][0], before["base"] * gates + before["adaptive"][0], rtol=1e-5)
    base = np.concatenate([received[name].ravel() for name in WEIGHTS])
    moved = 2 * 0.5 * (base - before["base"]) * gates
    np.testing.assert_allclose(after["adaptive"][0], before["adaptive"][0] - 0.1 * moved, rtol=1e-4, atol=1e-6)


def test_a_context_keeps_the_same_as_a_disk(tmp_path):
    context = ContextState(RecordDict())
    for state in (tmp_path, context):
        for server_round, stage in ((1, 0), (2, 1), (3, 2)):
            node(state, **PENALTIES).train_round(initial(), at(server_round, stage))
    assert same_bits(kept(node(tmp_path), 3), kept(node(context), 3))


def test_the_same_message_twice_gives_the_same(tmp_path):
    node(tmp_path, "fedweit", **PENALTIES).train_round(initial(), at(1, 0))
    borrowing = [node(tmp_path, "fedweit", knowledge=knowledge(1), **PENALTIES) for _ in range(2)]
    replies = [client.train_round(initial(), at(2, 1)) for client in borrowing]
    assert same_bits(replies[0].arrays, replies[1].arrays)


def test_a_stage_begins_at_the_base_with_the_last_stages_biases(tmp_path):
    client = node(tmp_path)
    client.train_round(initial(), at(1, 0))
    received = {name: array + 0.5 for name, array in initial().items()}
    begun = model_at(client, received, at(1, 1), stage=1)
    for name in WEIGHTS:
        np.testing.assert_allclose(begun[name], received[name], rtol=1e-6)
    np.testing.assert_array_equal(begun["head.bias"], kept(client, 1)["own"][0])


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_stages_are_evaluated_with_their_own_parameters_unmet_ones_with_the_current(tmp_path, kind):
    node(tmp_path, kind).train_round(initial(), at(1, 0))
    client = node(tmp_path, kind, **PENALTIES)
    client.train_round(initial(), at(2, 1))
    received = {name: array + 0.1 for name, array in initial().items()}
    metrics = client.evaluate_round(received, at(2, 1)).metrics
    parts, flat = kept(client, 2), np.concatenate([received[name].ravel() for name in WEIGHTS])
    units = np.array([0, 0, 1, 1, 2, 2])
    for stage, index in ((0, 0), (1, 1), (2, 1)):
        theta = flat / (1 + np.exp(-parts["mask"][index]))[units] + parts["adaptive"][index]
        model = ToyTask().build_model().eval()
        with torch.no_grad():
            model.encoder.weight.copy_(torch.from_numpy(theta[:4].reshape(2, 2)))
            model.head.weight.copy_(torch.from_numpy(theta[4:].reshape(1, 2)))
            model.head.bias.copy_(torch.from_numpy(parts["own"][index]))
        expected = ToyTask().loss(model, staged(1).stages[stage]["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected, rel=1e-4)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_the_learning_rate_falls_by_the_validation_loss_of_the_current_stage(tmp_path):
    client, one_epoch = node(tmp_path), at(1, 0, plateau_patience=5, epochs=1)
    trained = client.train_round(initial(), one_epoch).arrays
    rate, best, stale = client.private.load(2)["memory.plateau"]
    plain = ToyTask().build_model().eval()
    found = model_at(client, trained, one_epoch, 0)
    plain.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()}, strict=False)
    validation = staged(1).stages[0]["validation"]
    assert (rate, stale) == (0.05, 0)
    assert best == pytest.approx(ToyTask().loss(plain, validation).item())


def test_apd_keeps_the_past_better_than_no_drift_penalty(tmp_path):
    moved = {}
    for drift in (0.0, 10.0):
        client = node(tmp_path / str(drift), drift=drift)
        base = client.train_round(initial(), at(1, 0)).arrays
        old = model_at(client, base, at(1, 0), 0)
        base = client.train_round(base, at(2, 1, epochs=40)).arrays
        new = model_at(client, base, at(2, 1), 0)
        moved[drift] = sum(float(np.square(new[name] - old[name]).sum()) for name in WEIGHTS)
    assert moved[10.0] < 0.1 * moved[0.0]
