"""Runs with held-out nodes: no round has them, and the summary has what the result gives to them."""

import pytest
from run_outputs import assert_same
from small_runs import LQR, run_inline

import fedapps
from fedapps.app.round_config import tracked_results
from fedapps.runs.tables import summary_table

KEYS = ("robot-00", "robot-01", "robot-02", "robot-03", "robot-04")
METHODS = "local,fedavg,spfl,apfl,h-fl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    given = LQR | {"methods": METHODS, "num-nodes": 5, "held-out-nodes": "0.4", "held-out-epochs": 4}
    return run_inline(given, tmp_path_factory.mktemp("held-out"))


def held_out_of(folder):
    return {method: facts["held_out"] for method, facts in folder.summary()["methods"].items()}


def test_no_round_has_the_held_out_nodes(folder):
    took_part = {row["node"] for row in folder.lines("nodes.jsonl")}
    aside = {tuple(found["nodes"]) for found in held_out_of(folder).values()}
    (chosen,) = aside  # the same for every method
    assert len(chosen) == 2
    assert took_part == set(KEYS) - set(chosen)
    assert {row["replies"] for row in folder.lines("metrics.jsonl")} == {3}
    assert not {path.name for path in (folder.path / "nodes").glob("*/*/*")} & set(chosen)


def test_the_summary_has_the_three_models_of_each_node_and_their_means(folder):
    for found in held_out_of(folder).values():
        assert (found["epochs"], found["refused"]) == (4, {})
        for model in ("shared", "adapted", "local"):
            losses = [of_node[model]["test.total_loss"] for of_node in found["nodes"].values()]
            assert found[model]["test.total_loss"] == pytest.approx(sum(losses) / 2)


def test_under_local_adaptation_is_training_alone_to_the_bit(folder):
    found = held_out_of(folder)
    metrics = [name for name in found["local"]["local"] if name != "steps.count"]
    for of_node in found["local"]["nodes"].values():
        assert {n: of_node["adapted"][n] for n in metrics} == {n: of_node["local"][n] for n in metrics}
    assert all(of_method["local"] == found["local"]["local"] for of_method in found.values())


def test_adaptation_helps_and_the_federation_helps_adaptation(folder):
    for method in ("fedavg", "spfl"):
        found = held_out_of(folder)[method]
        losses = {model: found[model]["test.total_loss"] for model in ("shared", "adapted", "local")}
        assert min(losses, key=losses.__getitem__) == "adapted", losses


def test_the_frame_has_a_row_per_method_node_and_model(folder):
    frame = fedapps.open_run(folder.path).held_out
    assert len(frame) == 5 * 2 * 3
    found = held_out_of(folder)["apfl"]
    row = frame[(frame.method == "apfl") & (frame.model == "adapted")].set_index("node")["test.total_loss"]
    assert dict(row) == {node: of["adapted"]["test.total_loss"] for node, of in found["nodes"].items()}


def test_the_table_of_the_run_shows_them(folder):
    head, _, *rows = summary_table(folder).split("\n\n")[1].splitlines()
    assert head.split() == ["held-out", "nodes:", "state_loss", "shared", "adapted", "local"]
    assert [row.split()[0] for row in rows] == METHODS.split(",")


def test_zero_epochs_leave_the_shared_model(tmp_path):
    given = LQR | {"methods": "fedavg", "rounds": 1, "held-out-nodes": "robot-01", "held-out-epochs": 0}
    found = held_out_of(run_inline(given, tmp_path))["fedavg"]
    assert list(found["nodes"]) == ["robot-01"]
    assert found["adapted"] == found["shared"]


@pytest.mark.parametrize("changes", [{"node-batch": 3}, {"state-backend": "context"}])
def test_engines_agree(tmp_path, changes):
    given = LQR | {"methods": "fedavg", "rounds": 2, "num-nodes": 4, "held-out-nodes": "0.5", "held-out-epochs": 2}
    plain, other = run_inline(given, tmp_path / "a"), run_inline(given | changes, tmp_path / "b")
    mine, theirs = held_out_of(plain)["fedavg"], held_out_of(other)["fedavg"]
    assert mine["nodes"].keys() == theirs["nodes"].keys()
    for model in ("shared", "adapted", "local"):
        assert mine[model] == pytest.approx(theirs[model], rel=1e-4)


def test_a_resumed_run_holds_out_the_same_nodes(tmp_path):
    given = LQR | {"methods": "apfl", "num-nodes": 4, "held-out-nodes": "0.25", "held-out-epochs": 1}
    whole = run_inline(given, tmp_path / "whole")
    again = run_inline(given, tmp_path / "again")
    (again.path / "summary.json").unlink()  # as if it had been killed after the last round
    resumed = run_inline(given | {"resume": True}, tmp_path / "again")
    assert_same(whole, resumed)
    assert held_out_of(resumed) == held_out_of(whole)


def test_trackers_get_the_means_of_the_three_models():
    models = {"shared": {"test.x": 3.0}, "adapted": {"test.x": 2.0}, "local": {}}
    facts = {"final": {"test.x": 1.0}, "held_out": {"epochs": 2, "nodes": {"a": models}, **models}}
    found = {"test.x": 1.0, "held-out.shared.test.x": 3.0, "held-out.adapted.test.x": 2.0}
    assert tracked_results(facts) == found
    assert tracked_results({"final": {"test.x": 1.0}}) == {"test.x": 1.0}
