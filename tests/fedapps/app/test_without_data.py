"""Deployed nodes that have no data for a run: left out, said why, and the run goes on without them."""

import re

import numpy as np
import pytest
from fedapps.strategies import TooFewRepliesError
from fedapps.tasks.lqr.world import write_world
from flwr.app import Context, Message, RecordDict
from small_runs import run_inline, with_changes

from fedapps.app.client_app import app
from fedapps.app.disclosure import NodeFailedError
from fedapps.config.parsing import parse

SMALL = {"task": "lqr", "epochs": 1, "batch-size": 16, "collect-after": 0, "evaluate-every": 1, "name": "run"}
DETAILS = "the node's log has the details of error"
pytestmark = pytest.mark.usefixtures("flower_identity")


@pytest.fixture
def folders(tmp_path):
    """Two robots' own folders."""
    found = []
    for index, path in enumerate(write_world(tmp_path / "world", 2, seed=1)):
        folder = tmp_path / f"data-{index}"
        folder.mkdir()
        path.rename(folder / path.name)
        found.append({"data-dir": str(folder), "state-dir": str(tmp_path / f"state-{index}")})
    return found


def run(place, nodes, **changes):
    given = {"methods": "sfl", "rounds": 2, "num-nodes": len(nodes)}
    return run_inline(with_changes(SMALL | given, changes), place, nodes)


def asked(node_config, kind):
    """A node's reply to a message without content."""
    context = Context(1, 7, node_config, RecordDict(), parse(SMALL | {"methods": "sfl"}).flat())
    return app(Message(RecordDict(), 7, kind), context)


def told(node_config):
    """A node's answer to the query for its profile."""
    return asked(node_config, "query.profile").content["profile"]


def test_a_run_goes_on_as_if_nodes_without_data_were_not_there(folders, tmp_path, warnings):
    empty = tmp_path / "empty"
    empty.mkdir()
    missing = str(tmp_path / "missing")
    without = [{"data-dir": str(empty)}, {"data-dir": missing}]
    more = run(tmp_path / "more", [without[0], folders[0], without[1], folders[1]])
    for folder in folders:
        folder["state-dir"] += "-again"
    alone = run(tmp_path / "alone", folders)
    for mine, theirs in zip(more.lines("metrics.jsonl"), alone.lines("metrics.jsonl"), strict=True):
        assert (mine["replies"], mine["refused"]) == (2, [])
        assert (mine["train"], mine["evaluate"]) == (theirs["train"], theirs["evaluate"])
    latest = [folder.checkpoints("sfl").latest() for folder in (more, alone)]
    for name, array in latest[0].arrays.items():
        np.testing.assert_array_equal(array, latest[1].arrays[name], err_msg=name)
    assert {row["node"] for row in more.lines("nodes.jsonl")} == {"robot-00", "robot-01"}
    (node,) = [line for line in warnings if missing in line]
    identifier = re.search(r"takes no part in the run, which failed, error (\w+): the node's data-dir = ", node)[1]
    (server,) = [line for line in warnings if line.startswith("node no-data-4 has no data for this run")]
    assert server.endswith(f"the node's data are missing or cannot be used; {DETAILS} {identifier}")
    assert sum(f"{empty}: expected files robot-*.csv" in line for line in warnings) == 1, "on the node alone"


def test_the_profile_of_a_node_without_data_says_so_and_its_log_says_why(tmp_path, warnings):
    for node_config, reason in (
        ({"data-dir": str(tmp_path / "none")}, "no such folder; give the folder that holds the data files"),
        ({"data-dir": str(tmp_path)}, f"{tmp_path}: expected files robot-*.csv"),
        ({}, "this node has neither a data-dir nor a partition-id"),
    ):
        profile = told(node_config)
        assert (profile["key"], profile["num-examples"]) == ("no-data-7", 0)
        sent = re.fullmatch(rf"DataError: the node's data .*; {DETAILS} (\w{{8}})", profile["no-data"])
        assert f"error {sent[1]}: " in warnings[-1]
        assert reason in warnings[-1]
        assert reason in told({**node_config, "send-errors": True})["no-data"], "a developer's switch"


def test_data_that_cannot_be_opened_are_none(tmp_path, monkeypatch, warnings):
    def denied(*_):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("fedapps.config.run_config.RunConfig.source", denied)
    assert told({"data-dir": str(tmp_path)})["no-data"].startswith(f"PermissionError; {DETAILS} ")
    assert "Permission denied" in warnings[-1]


def test_a_simulation_without_data_fails_with_the_reason(tmp_path):
    nowhere = {"data-dir": str(tmp_path / "none"), "output-dir": str(tmp_path)}
    with pytest.raises(TooFewRepliesError, match="no such folder"):
        run(tmp_path, [{}, {}], **nowhere)


def test_where_no_node_has_data_the_run_fails(tmp_path, warnings):
    with pytest.raises(TooFewRepliesError, match="0 usable replies"):
        run(tmp_path / "runs", [{"data-dir": str(tmp_path)}] * 2)
    assert sum("expected files robot-*.csv" in line for line in warnings) == 2
    assert sum("has no data for this run" in line for line in warnings) == 2


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_node_without_data_that_is_asked_all_the_same_refuses_in_one_line(tmp_path, kind, warnings):
    with pytest.raises(NodeFailedError) as refused:
        asked({"data-dir": str(tmp_path)}, kind)
    sent = re.fullmatch(rf"DataError: the node's data .*; {DETAILS} (\w{{8}})", str(refused.value))
    expected = f"{tmp_path}: expected files robot-*.csv, .csv.gz or .csv.xz, found none"
    assert warnings[-1] == f"the {kind} message failed, error {sent[1]}: {expected}"


def test_a_robot_that_may_not_work_is_left_out_of_a_round_and_asked_again_in_the_next(folders, tmp_path):
    robot, seen = folders[1], tmp_path / "asked"
    robot["eligible"] = (
        f"sh -c 'echo >> {seen}; test $(wc -l < {seen}) != 5'"  # before the run; then before each round and each work
    )
    result = run(tmp_path / "runs", folders, rounds=3)
    rounds = result.lines("metrics.jsonl")
    why = {"robot-01": "eligible: the command ended with exit status 1"}
    assert [row.get("ineligible", {}) for row in rounds] == [{}, why, {}]
    assert [(row["replies"], row["refused"]) for row in rounds] == [(2, []), (1, []), (2, [])]
    assert {
        row["phase"] for row in result.lines("nodes.jsonl") if (row["node"], row["round"]) == ("robot-01", 2)
    } == set()
