"""Ditto: by hand, beside FedAvg, FedProx and training alone, and where its personal models end."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from toys import same_bits, same_rounds

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


def personal(run, node):
    """The personal model of a node, by the names of the task."""
    kept = run.kept[node]
    return {name.removeprefix("memory.personal."): a for name, a in kept.items() if name.startswith("memory.personal.")}


def test_two_worlds():
    run = run_method("ditto(lambda=1)", rounds=1)
    assert run.memory("personal.theta") == near(0.36, -0.48)
    run = run_method("ditto(lambda=1)")
    assert run.values() == near(-0.065, -0.10725)
    assert run.memory("personal.theta") == near(0.5787, -0.6632)
    run = run_method("ditto(lambda=0.5)", SecondWorld)
    assert run.values() == near(-0.16, -0.264)
    assert run.memory("personal.theta") == near(0.303862, -0.717338)


def test_a_node_that_was_away_goes_on_from_its_personal_model_and_the_newest_shared_one():
    run = run_method("ditto(lambda=1)", absent={(2, 0)})
    # θ after round 1 is -.065; node 0 keeps .36 and node 1 continues as if nobody had been away.
    assert run.memory("personal.theta") == near(0.36, -0.6632)


@pytest.mark.parametrize("keys", [{}, {"clip_norm": 0.5}, {"momentum": 0.9}, {"optimizer": "adam", "batch_size": 3}])
def test_the_shared_model_is_that_of_fedavg_and_without_a_weight_the_personal_one_is_that_of_a_node_alone(keys):
    ditto, fedavg, local = (run_method(method, Points, **keys) for method in ("ditto(lambda=0)", "fedavg", "local"))
    assert same_rounds(ditto.arrays, fedavg.arrays)
    for node in (0, 1):
        assert same_bits(personal(ditto, node), local.kept[node])
    weighted = run_method("ditto(lambda=2)", Points, **keys)
    assert same_rounds(weighted.arrays, fedavg.arrays)


def test_the_personal_model_of_the_first_round_is_that_of_fedprox():
    run, fedprox = (run_method(method, Points, rounds=1) for method in ("ditto(lambda=2)", "fedprox(mu=2)"))
    replies = [reply["arrays"].to_numpy_ndarrays() for kind, _, _, reply in fedprox.messages if kind == "train"]
    for node in (0, 1):
        assert all(map(np.array_equal, personal(run, node).values(), replies[node]))


@settings(deadline=None, max_examples=3)
@given(st.floats(0, 4), st.floats(0.5, 3), st.floats(-3, 3))
def test_a_personal_model_ends_between_its_own_optimum_and_the_shared_one(weight, curvature, optimum):
    class World(Quadratics):
        name = "world"
        nodes = ((curvature, optimum), (1.0, -1.0))

    run = run_method(f"ditto(lambda={weight})", World, rounds=4, steps=60)
    # With many steps w is the mean of the optima from the first round on, and v = (a b + λ w) / (a + λ).
    shared = (optimum - 1) / 2
    assert run.values()[-1] == pytest.approx(shared, abs=0.02)
    ends = [(a * b + weight * shared) / (a + weight) for a, b in World.nodes]
    assert run.memory("personal.theta") == pytest.approx(ends, abs=0.05)


def test_the_personal_model_is_evaluated(tmp_path):
    run = run_method("ditto(lambda=1)", rounds=1, folder=tmp_path)
    losses = [row["metrics"]["test.loss"] for row in run.folder.lines("nodes.jsonl") if row["phase"] == "evaluate"]
    assert losses == near(*(0.5 * a * (v - b) ** 2 for v, (a, b) in zip((0.36, -0.48), Quadratics.nodes, strict=True)))
