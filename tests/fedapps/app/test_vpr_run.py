"""Whole runs of nodes that look for places, under every way in which the server brings them together."""

from functools import cache

import pytest
from fedapps.tasks.base import DataError
from small_runs import run_inline, with_changes
from striped_places import write_places
from toys import same_bits

from fedapps.config.parsing import parse
from fedapps.launch.inputs import check_data

pytestmark = pytest.mark.slow
METHODS = ["untrained", "cloud", "local", "fedavg", "fedadam", "fedvc", "h-fl", "clustered"]
SMALL = {
    "task": "vpr", "num-nodes": 4, "rounds": 2, "fraction-train": 1.0, "steps": 2, "batch-size": 4,
    "learning-rate": 1e-3, "evaluate-every": 1, "collect-after": 0, "weighting": "num-examples", "name": "run",
    "methods": ",".join(METHODS), "h-fl.groups": "continent", "h-fl.intervals": "2", "clustered.clusters": 2,
    "vpr.backbone": "squeezenet1_1-stride8", "vpr.height": 24, "vpr.width": 32, "vpr.radius": 1000.0,
    "vpr.negatives": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Five cities on two continents, the last of them for the common test: one node in each of the others."""
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=5, spots=4)
    return {"data-dir": str(folder)}


@pytest.fixture(scope="module")
def whole(places, tmp_path_factory, reports):
    with reports():
        return run_inline(SMALL | places, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def run_with(places, tmp_path_factory):
    """Run a method with some keys changed, once for the same changes."""

    @cache
    def run(method, **changes):
        given = with_changes(SMALL | places, changes) | {"methods": method}
        folder = run_inline(given, tmp_path_factory.mktemp(method))
        return folder, shared_of(folder, method)

    return run


def shared_of(folder, method):
    """The shared parameters after the last round."""
    arrays = folder.checkpoints(method).latest().arrays
    return {name: array for name, array in arrays.items() if name.startswith("shared.")}


def lines(folder, name, method):
    return [row for row in folder.lines(name) if row["method"] == method]


def test_every_method_runs_to_its_end_and_ends_in_a_report(whole):
    summary = whole.summary()["methods"]
    assert list(summary) == METHODS
    assert all(facts["refused"] == 0 and facts["rounds"] == 2 for facts in summary.values())
    assert all(0 <= facts["final"]["test.recall_at_10"] <= 1 for facts in summary.values())
    report = (whole.path / "report.html").read_text()
    assert all(method in report for method in METHODS)


def test_where_nobody_trains_the_model_stays(whole):
    first, second = (row["evaluate"] for row in lines(whole, "metrics.jsonl", "untrained"))
    assert first == second
    assert all("loss" not in row["train"] for row in lines(whole, "metrics.jsonl", "untrained"))


def test_nodes_are_told_apart_by_their_groups_and_clusters(whole):
    groups = {row["node"]: row["groups"] for row in lines(whole, "nodes.jsonl", "h-fl")}
    assert len(groups) == 4
    assert all(row["cluster"] == row["continent"] for row in groups.values())
    assert {row["cluster"] for row in groups.values()} == {"land-0", "land-1"}
    assert all("cluster" not in row["groups"] for row in lines(whole, "nodes.jsonl", "fedavg"))
    found = {row["groups"]["cluster"] for row in lines(whole, "nodes.jsonl", "clustered") if row["round"] == 2}
    assert len(found) == 2


def test_a_node_evaluates_its_clusters_model_and_the_shared_one(whole):
    rows = [row for row in lines(whole, "nodes.jsonl", "h-fl") if row["phase"] == "evaluate"]
    before = [row["metrics"] for row in rows if row["round"] == 1]
    assert len({row["shared.test.recall_at_1"] for row in before}) == 1
    assert any(row["train.loss"] != row["shared.train.loss"] for row in before)
    # Round 2 is that of the average: all clusters begin again from it.
    for row in rows:
        if row["round"] == 2:
            assert row["metrics"]["train.loss"] == row["metrics"]["shared.train.loss"]
    assert lines(whole, "metrics.jsonl", "h-fl")[0]["strategy"]["averaged"] == []
    assert lines(whole, "metrics.jsonl", "h-fl")[1]["strategy"]["averaged"] == ["continent"]


def test_a_method_with_a_server_optimizer_is_fedavg_with_that_of_the_run_config(run_with):
    named = run_with("fedadam", server_tau=0.1, **{"fedadam.learning-rate": 0.01})
    given = run_with("fedavg", server_optimizer="adam", server_learning_rate=0.01, server_tau=0.1)
    assert same_bits(named[1], given[1])


def test_a_node_that_is_drawn_twice_trains_twice_and_counts_twice(whole):
    rows = [row for row in lines(whole, "nodes.jsonl", "fedvc") if row["phase"] == "train"]
    drawn = [[row["node"] for row in rows if row["round"] == number] for number in (1, 2)]
    assert [len(nodes) for nodes in drawn] == [4, 4]
    assert any(len(set(nodes)) < 4 for nodes in drawn)
    losses = {}
    for row in rows:
        losses.setdefault((row["round"], row["node"]), []).append(row["metrics"]["loss"])
    assert all(len(set(found)) == len(found) for found in losses.values())  # other examples, another loss
    for number, round_ in enumerate(lines(whole, "metrics.jsonl", "fedvc"), 1):
        assert round_["strategy"] == {"virtual-clients": 4, "nodes": len(set(drawn[number - 1])), "steps": 2}
        mean = sum(row["metrics"]["loss"] for row in rows if row["round"] == number) / 4
        assert round_["train"]["loss"] == pytest.approx(mean)


def test_steps_times_rounds(run_with):
    folder, _ = run_with("fedavg", total_steps=6)
    rows = lines(folder, "metrics.jsonl", "fedavg")
    assert len(rows) == 3
    assert all(row["train"]["steps"] == 2 for row in rows)


def test_without_a_folder_cities_are_made_up_and_with_one_its_pictures_are_taken(places):
    given = {"task": "vpr", "collect-after": 0, "methods": "fedavg"}
    assert parse(given).options.source == "simulated"
    assert parse(given | places).options.source == "files"
    assert parse(given | {"vpr.source": "files"}).options.source == "files"
    with pytest.raises(DataError, match="data-dir = ''"):
        check_data(parse(given | {"vpr.source": "files"}))


def test_from_scratch_all_layers_are_trained_and_travel(run_with):
    _, some = run_with("fedavg")
    _, every = run_with("fedavg", **{"vpr.train-all": True})
    assert len(every) > len(some)
    assert "shared.trained.features.0.weight" in every
    assert "shared.trained.features.0.weight" not in some
