"""FedSGD: a round is one step of centralised gradient descent."""

import numpy as np
import pytest
from fedapps.strategies.records import under
from small_runs import run_inline

SMALL = {
    "task": "lqr", "num-nodes": 3, "rounds": 2, "evaluate-every": 2, "epochs": 4, "batch-size": 8, "collect-after": 0,
    "learning-rate": 0.01, "weighting": "num-examples", "name": "run", "methods": "fedsgd,centralized",
    "lqr.trajectories": 4, "lqr.horizon": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The shared arrays after the last round of FedSGD, and of centralised training by the given changes."""
    cache = {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}

    def run(method, **changes):
        folder = run_inline(SMALL | cache | {"methods": method} | changes, tmp_path_factory.mktemp("run"))
        return folder, under("shared.", folder.checkpoints(method).latest().arrays)

    return run


def test_a_round_is_one_step_of_centralised_sgd(shared):
    folder, ours = shared("fedsgd")
    _, centralised = shared("centralized", **{"steps": 1, "batch-size": 10_000, "optimizer": "sgd"})
    assert ours.keys() == centralised.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, centralised[name], rtol=1e-5, atol=1e-7)
    assert [row["train"]["steps"] for row in folder.lines("metrics.jsonl")] == [1, 1]


def test_local_epochs_and_batches_change_nothing(shared):
    _, first = shared("fedsgd")
    _, other = shared("fedsgd", **{"epochs": 1, "batch-size": 3, "optimizer": "adam"})
    assert all(np.array_equal(array, other[name]) for name, array in first.items())
