"""FedALA: weights and mixtures by hand, its bounds, what it evaluates, and where it is FedAvg."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import BodyAndHead, Points, Quadratics, run_method
from toys import same_rounds

from fedapps.methods.fedala import FedAlaOptions, FedAlaPart, _Mixture

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731
ONE_PASS = "fedala(weight-rate=0.5, first-passes=1)"


def test_rounds_by_hand():
    run = run_method(ONE_PASS, rounds=3)
    assert run.values() == near(-0.065, -0.092487, -0.033046)
    assert run.memory("fedala.weight.theta") == near(0.006755, 0)
    second = run_method(ONE_PASS, rounds=2)
    assert second.memory("fedala.weight.theta") == near(0.540538, 0.375887)
    assert second.memory("fedala.last.theta") == near(0.492963, -0.677938)
    # Before the first round there is no last model, and nothing to mix.
    first = run_method(ONE_PASS, rounds=1)
    assert first.memory("fedala.last.theta") == near(0.38, -0.51)
    assert "memory.fedala.weight.theta" not in first.kept[0]


def test_two_steps_of_the_weights_by_hand():
    mixture = _Mixture(*({"w": torch.tensor(values)} for values in ([1.0, 2.0], [3.0, 0.0], [1.0, 1.0])))
    found = []
    for _ in range(2):
        mixture.step({"w": mixture.values()["w"] - torch.tensor([2.0, 1.0])}, 0.1)
        found.append((mixture.weights["w"].tolist(), mixture.values()["w"].tolist()))
    assert found == [(near(0.8, 0.8), near(2.6, 0.4)), (near(0.68, 0.68), near(2.36, 0.64))]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(*[st.floats(-5, 5, width=32)] * 4, st.floats(0, 1)), min_size=1), st.floats(0, 100))
def test_weights_and_mixtures_stay_between_the_two_models(numbers, rate):
    last, received, gradient, other, weight = (torch.tensor(column) for column in zip(*numbers, strict=True))
    mixture = _Mixture({"w": last}, {"w": received}, {"w": weight})
    for slope in (gradient, other):
        mixture.step({"w": slope}, rate)
        assert ((mixture.weights["w"] >= 0) & (mixture.weights["w"] <= 1)).all()
        mixed = mixture.values()["w"]
        assert (mixed >= torch.minimum(last, received) - 1e-5).all()
        assert (mixed <= torch.maximum(last, received) + 1e-5).all()


def test_the_first_training_of_the_weights_ends_when_the_loss_settles(tmp_path):
    run = run_method("fedala(weight-rate=0.001)", rounds=3, folder=tmp_path)
    rows = [row for row in run.folder.lines("nodes.jsonl") if row["phase"] == "train"]
    assert [row["metrics"]["fedala.passes"] for row in rows] == [0, 0, 11, 11, 1, 1]
    assert all(row["metrics"]["fedala.weight"] <= 1 for row in rows)


def test_a_node_evaluates_the_model_that_it_trained_last(tmp_path):
    run = run_method(ONE_PASS, rounds=2, absent={(1, 1)}, folder=tmp_path)
    rows = [row for row in run.folder.lines("nodes.jsonl") if row["phase"] == "evaluate"]
    losses = {(row["round"], row["node"]): row["metrics"]["test.loss"] for row in rows}
    assert losses[1, "node-0"] == pytest.approx(0.5 * (0.38 - 2) ** 2)
    assert losses[1, "node-1"] == pytest.approx(1.5 * (0.38 + 1) ** 2)  # it has trained nothing: the received model
    last = run.memory("fedala.last.theta")
    assert losses[2, "node-1"] == pytest.approx(1.5 * (last[1] + 1) ** 2)


def test_only_the_top_layers_are_mixed():
    one, both = (run_method(f"fedala(layers={n})", BodyAndHead, rounds=3) for n in (1, 0))
    assert {name for name in one.kept[0] if ".weight." in name} == {"memory.fedala.weight.head.v"}
    assert {name for name in both.kept[0] if ".weight." in name} == {
        "memory.fedala.weight.head.v", "memory.fedala.weight.body.u"
    }  # fmt: skip
    assert one.values("body.u") != both.values("body.u")


def test_the_weights_are_trained_on_a_share_of_the_batches():
    class Node:
        device, data = torch.device("cpu"), None

        class settings:  # noqa: N801
            class training:  # noqa: N801
                batch_size = 1

        def epochs(self, model, data):
            return lambda size: ({"x": torch.tensor([i])} for i in range(5))

    counts = [len(list(FedAlaPart(FedAlaOptions(share=share))._batches(None, Node()))) for share in (0.1, 0.8, 1.0)]
    assert counts == [1, 4, 5]


def test_without_a_rate_the_shared_model_is_that_of_fedavg():
    for task in (Points, Quadratics):
        still, fedavg = run_method("fedala(weight-rate=0)", task), run_method("fedavg", task)
        assert same_rounds(still.arrays, fedavg.arrays)


def test_one_node_alone_never_trains_its_weights():
    alone, fedavg = (run_method(name, num_nodes=1, rounds=3) for name in ("fedala", "fedavg"))
    assert alone.values() == fedavg.values()
    np.testing.assert_equal(alone.memory("fedala.last.theta"), fedavg.values()[-1:])
    assert "memory.fedala.weight.theta" not in alone.kept[0]
