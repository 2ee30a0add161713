"""Nodes that train at once, in whole runs: the same results as one after another, to rounding."""

from pathlib import Path

import numpy as np
import pytest
from joint_jobs import counted_passes

from fedapps.comparison.compare import compare_recipe
from fedapps.config.parsing import parse
from fedapps.launch.launch import Simulation
from fedapps.tuning.tune import tune_recipe

LQR = {"num-nodes": 3, "rounds": 2, "evaluate-every": 1, "epochs": 1}
SOCIAL = {
    "task": "social", "num-nodes": 3, "rounds": 4, "evaluate-every": 1, "epochs": 1, "learning-rate": 0.001,
    "batch-size": 8, "weighting": "uniform", "collect-after": 0, "social.world-scenes": 20,
    "social.source": "simulated",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "method", "together"),
    [
        (LQR, "fedavg", 3),
        (LQR, "apfl", 3),
        (LQR, "fedprox", 3),
        (LQR, "elastic-transfer", 3),
        (LQR | {"clip-norm": 0.1, "optimizer": "sgd", "linear-decay": True}, "fedavg", 3),
        (LQR | {"plateau-patience": 1, "lqr.validation-share": 0.2, "lqr.trajectories": 4}, "fedavg", 3),
        (SOCIAL, "fedavg", 0),
    ],
)
def test_the_results_are_those_of_nodes_one_after_another(federate, monkeypatch, given, method, together):
    passes = counted_passes(monkeypatch)
    one = federate("one", **given, methods=method)
    assert not passes
    all_at_once = federate("all", **given, methods=method, **{"node-batch": 3})
    assert max(passes, default=0) == together
    label = next(iter(one.summary()["methods"]))
    first, second = (run.checkpoints(label).latest().arrays for run in (one, all_at_once))
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_allclose(second[name], array, rtol=1e-3, atol=1e-4)
    for file in ("metrics.jsonl", "nodes.jsonl"):
        for row, other in zip(one.lines(file), all_at_once.lines(file), strict=True):
            assert row.keys() == other.keys()
            assert row["round"] == other["round"]


def test_nodes_measured_one_by_one_cannot_train_at_once():
    with pytest.raises(ValueError, match="node-batch = 2: must be 1 with timings = true"):
        parse({"task": "lqr", "collect-after": 0, "node-batch": 2, "timings": True})


def test_nodes_with_a_process_each_cannot_train_at_once(tmp_path):
    config = parse({"task": "lqr", "collect-after": 0, "node-batch": 2, "name": "run", "output-dir": str(tmp_path)})
    with pytest.raises(ValueError, match=r"node-batch = 2: must be 1 where each node has its own process; .*inline"):
        Simulation("ray").check(config)


@pytest.mark.parametrize("command", [compare_recipe, tune_recipe])
def test_comparisons_and_tunings_say_so_before_anything_runs(command, tmp_path):
    given = {"node-batch": 2, "lqr.validation-share": 0.2, "lqr.trajectories": 4}
    more = {"trials": 2} if command is tune_recipe else {}
    with pytest.raises(ValueError, match="node-batch = 2: must be 1"):
        command(Path("lqr"), methods=["sfl"], seeds=1, engine="ray", overrides=given, output_dir=str(tmp_path), **more)
    assert not list(tmp_path.iterdir())
