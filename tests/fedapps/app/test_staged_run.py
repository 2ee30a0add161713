"""Whole runs of nodes that learn one simulated person's taste after another."""

import pytest
from fedapps.tasks.base import DataError
from run_outputs import assert_same
from small_runs import power_cut, run_inline, with_changes

from fedapps.config.parsing import ConfigError, parse
from fedapps.launch.inputs import check_data
from fedapps.report import write_report

pytestmark = pytest.mark.slow

ALL_HALF = "elastic-transfer(own-past=0.5,others-past=0.5,others-now=0.5)"
MOSTLY_HALF = "elastic-transfer(own-past=0.5,others-past=0.05,others-now=0.5)"
NOTHING = "elastic-transfer(own-past=0,others-past=0,others-now=0)"
METHODS = [
    "stl", "fedavg", "local-ewc", "fedprox-ewc", "fedavg-l2t", "local-apd", "fedprox-apd", "fedweit", "fedcurv",
    "elastic-transfer", MOSTLY_HALF, NOTHING,
]  # fmt: skip
SMALL = {
    "task": "social", "num-nodes": 2, "rounds": 4, "epochs": 1, "batch-size": 16, "learning-rate": 0.01,
    "evaluate-every": 1, "collect-after": 0, "plateau-patience": 2, "weighting": "uniform", "name": "run",
    "social.source": "simulated", "social.participants": "a,b;c,d", "social.world-scenes": 30, "social.hidden": 6,
    "social.layers": 2,
}  # fmt: skip


@pytest.fixture
def federate(tmp_path, worlds):
    """Run the app with some keys changed; the run's folder."""

    def run(place="run", **changes):
        return run_inline(with_changes(SMALL | worlds, changes), tmp_path / place)

    return run


def of_method(folder, method, name="metrics.jsonl"):
    return [row for row in folder.lines(name) if row["method"] == method]


def test_the_measures_of_continual_learning_are_those_of_the_nodes_lines(federate):
    methods = federate(methods=",".join(METHODS))
    summary = methods.summary()["methods"]
    assert list(summary) == METHODS
    for method in METHODS:
        rows = of_method(methods, method)
        assert [row["stage"] for row in rows] == ["stage 1 of 2"] * 2 + ["stage 2 of 2"] * 2
        assert not any(row["refused"] for row in rows)
        told = [row for row in of_method(methods, method, "nodes.jsonl") if row["phase"] == "evaluate"]
        error = {
            (after, stage): sum(row["metrics"][f"stage-{stage}.test.mse"] for row in told if row["round"] == 2 * after)
            / 2
            for after in (1, 2)
            for stage in (1, 2)
        }
        final = summary[method]["final"]
        assert final["test.amse"] == pytest.approx((error[1, 1] + error[2, 2]) / 2)
        assert final["test.bwt"] == pytest.approx(error[2, 1] - error[1, 1])
        assert final["test.fwt"] == pytest.approx(error[1, 2])
        assert final["test.mse"] == pytest.approx(error[2, 2])
        assert final["test.final_mse"] == pytest.approx((error[2, 1] + error[2, 2]) / 2)
    sizes = {method: summary[method]["final"]["trainable_parameters"] for method in METHODS}
    plain = sizes["fedavg"]
    assert sizes["stl"] == 2 * plain
    assert {sizes[m] for m in METHODS if "apd" not in m and m not in ("stl", "fedweit")} == {plain}
    assert sizes["local-apd"] < sizes["fedweit"]


def test_digits_arrive_in_stages_of_classes(federate):
    """Alone, EWC forgets the first five digits, and no method knows the others before it meets them."""
    keys = {"images.stages": 2, "images.partition": "iid", "images.model": "mlp", "images.global-share": 0.5}
    folder = federate(task="images", methods="local-ewc,fedweit", **keys)
    for method in ("local-ewc", "fedweit"):
        last = [row["evaluate"] for row in of_method(folder, method)][1::2]
        stages = [[row[f"stage-{stage}.test.global_accuracy"] for stage in (1, 2)] for row in last]
        final = folder.summary()["methods"][method]["final"]
        assert final["test.final_global_accuracy"] == pytest.approx(sum(stages[1]) / 2)
        assert final["test.bwt_global_accuracy"] == pytest.approx(stages[1][0] - stages[0][0])
        assert stages[0][1] == final["test.fwt_global_accuracy"] == 0
        assert stages[0][0] > 0.5
    assert folder.summary()["methods"]["local-ewc"]["final"]["test.bwt_global_accuracy"] < -0.3


@pytest.mark.parametrize("method", ["local-ewc", "fedweit", ALL_HALF])
@pytest.mark.parametrize("cut_in", [2, 3])
def test_a_run_that_is_cut_off_ends_as_if_nothing_had_happened(federate, method, cut_in):
    undisturbed = federate("undisturbed", methods=method)
    with power_cut(cut_in):
        federate("cut", methods=method)
    assert_same(undisturbed, federate("cut", methods=method, resume=True))


def test_a_dropped_node_is_the_same_for_every_method(federate):
    folder = federate(methods=f"fedavg,fedweit,{ALL_HALF}", drop_nodes=True)
    trained = {}
    for row in folder.lines("nodes.jsonl"):
        if row["phase"] == "train":
            trained.setdefault(row["method"], []).append((row["round"], row["node"]))
    first, *others = trained.values()
    assert len(first) == 4
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rounds": 5}, "rounds"),
        ({"evaluate-every": 3}, "evaluate-every"),
        ({"ewc.lambda": -0.1}, "ewc.lambda"),
        ({"elastic-transfer.own-past": -1.0}, "elastic-transfer.own-past"),
        ({"social.participants": "a,b;c"}, "all nodes must have the same number of participants"),
        ({"social.participants": "a,b;c,d", "num-nodes": 3}, "num-nodes"),
    ],
)
def test_bad_settings_are_told_before_anything_runs(worlds, changes, told):
    with pytest.raises((ConfigError, DataError), match=told):
        check_data(parse(SMALL | worlds | changes))


def test_the_report_has_a_heat_map(federate):
    folder = federate(methods="fedavg,stl")
    assert "Results by stage" in write_report(folder.path).read_text()
