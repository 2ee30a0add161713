"""q-FFL: by hand, by the objective that its step lowers, and without its power."""

from itertools import pairwise

import pytest
import torch
from fedapps.clients.arrays import load_arrays
from fedapps.strategies.arrays import from_record
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Network, Points, Quadratics, SecondWorld, run_method
from toys import same_rounds

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


class Unequal(Quadratics):
    """One example on the first node, three on the second."""

    name = "unequal"
    sizes = (1, 3)


def test_two_rounds_by_hand():
    assert run_method("q-ffl(q=1)").values() == near(-0.000663, -0.001024)
    assert run_method("q-ffl(q=2)").values() == near(0.018786, 0.028198)
    assert run_method("q-ffl(q=1)", SecondWorld).values() == near(-0.135026, -0.220283)


def test_the_weights_of_nodes_count_beside_their_losses():
    # F = (2, 1.5), Δw = (-3.8, 5.1): (-7.6 + 3 · 7.65) / (34.44 + 3 · 41.01).
    weighted = run_method("q-ffl(q=1)", Unequal, rounds=1, weighting="num-examples")
    assert weighted.values() == near(-15.35 / 157.47)


def test_another_lipschitz_constant_and_the_length_of_the_step(tmp_path):
    # L = 20 doubles Δw: (-15.2 + 15.3) / (14.44 · 4 + 26.01 · 4 + 20 · 3.5).
    run = run_method("q-ffl(q=1,lipschitz=20)", rounds=1, folder=tmp_path)
    assert run.values() == near(-0.1 / 231.8)
    (line,) = run.folder.lines("metrics.jsonl")
    assert line["strategy"]["q-ffl"]["step"] == pytest.approx(3.5 / (3.5 + 161.8 / 20))


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9}, {"weighting": "num-examples", "batch_size": 3}])
def test_without_a_power_it_is_fedavg(keys):
    fair, fedavg = (run_method(name, Points, **keys) for name in ("q-ffl(q=0)", "fedavg"))
    assert same_rounds(fair.arrays, fedavg.arrays)


@settings(deadline=None, max_examples=5)
@given(st.floats(0, 5), st.floats(-3, 3))
def test_no_step_raises_the_objective(q, begin):
    class Elsewhere(Quadratics):
        name = f"elsewhere-{begin:.3f}"
        start = begin

    label = f"q-ffl(q={q:.3f})"
    values = [begin, *run_method(label, Elsewhere, rounds=4, steps=1, evaluate_every=4).values()]
    objective = [sum((0.5 * a * (w - b) ** 2) ** (q + 1) for a, b in Quadratics.nodes) for w in values]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(objective))


def test_the_loss_is_that_of_the_received_model_on_all_training_examples():
    run = run_method("q-ffl", Points, batch_size=3, steps=1)
    for kind, node, sent, reply in run.messages:
        if kind == "train":
            model = Network().eval()
            load_arrays(model, from_record(sent["arrays"]))
            with torch.no_grad():
                expected = float(Points().loss(model, Points().node(node).splits["train"]))
            assert reply["metrics"]["q-ffl.loss"] == pytest.approx(expected, rel=1e-6)


def test_a_loss_below_0_is_refused(monkeypatch):
    monkeypatch.setattr("fedapps.methods.q_ffl.mean_loss", lambda *given: -0.5)
    with pytest.raises(Exception, match=r"metric q-ffl.loss is -0.5: a client returns one from 0 to 1e\+10"):
        run_method("q-ffl", rounds=1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"optimizer": "adam"}, "optimizer = 'adam': must be 'sgd' with q-ffl"),
        ({"aggregation": "median"}, "nodes report the losses by which their updates count"),
        ({"mode": "async"}, "leave out of methods 'q-ffl'"),
    ],
)
def test_what_its_step_does_not_allow_is_refused_before_the_run(keys, message):
    with pytest.raises(Exception, match=message):
        run_method("q-ffl", **keys)
