"""Local training: who trains, and for how long."""

from collections import Counter

import pytest
from run_outputs import assert_same
from small_runs import run_inline

from fedapps.config.parsing import ConfigError, parse

NODES = 4
SMALL = {
    "task": "lqr", "num-nodes": NODES, "rounds": 4, "evaluate-every": 4, "epochs": 1, "batch-size": 8,
    "collect-after": 0, "learning-rate": 0.01, "name": "run", "methods": "local", "lqr.trajectories": 4,
    "lqr.horizon": 6,
}  # fmt: skip
IN_TURN = {"local.participation": "in-turn"}


@pytest.fixture
def federate(tmp_path, tmp_path_factory):
    cache = {"cache-dir": str(tmp_path_factory.mktemp("worlds"))}
    return lambda place, changes: run_inline(SMALL | cache | changes, tmp_path / place)


def trained(folder):
    return [row for row in folder.lines("nodes.jsonl") if row["phase"] == "train"]


def steps_per_node(folder):
    return folder.summary()["methods"]["local"]["final"]["steps_per_node"]


def test_in_turn_every_node_trains_equally_often(federate):
    """Two of four nodes train in each of four rounds, so each node trains in two."""
    rows = trained(federate("run", IN_TURN | {"fraction-train": 0.5}))
    assert Counter(row["node"] for row in rows) == {f"robot-{node:02d}": 2 for node in range(NODES)}
    assert Counter(row["round"] for row in rows) == dict.fromkeys((1, 2, 3, 4), 2)


def test_the_epochs_of_local_training_replace_those_of_the_run(federate):
    half = IN_TURN | {"fraction-train": 0.5}
    one, three = federate("one", half), federate("three", half | {"local.epochs": 3})
    steps = trained(one)[0]["metrics"]["steps"]
    assert {row["metrics"]["steps"] for row in trained(three)} == {3 * steps}
    assert (steps_per_node(one), steps_per_node(three)) == (2 * steps, 6 * steps)
    in_steps = federate("steps", half | {"steps": 5, "local.epochs": 1})
    assert {row["metrics"]["steps"] for row in trained(in_steps)} == {steps}


def test_with_all_nodes_in_every_round_nothing_differs(federate):
    drawn = federate("drawn", {})
    assert_same(drawn, federate("turn", IN_TURN))
    assert_same(drawn, federate("epochs", {"local.epochs": 1}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": "poisson"}, "sampling = 'poisson': must be 'fixed' with local.participation = 'in-turn'"),
        ({"drop-nodes": True}, "drop-nodes = true: must be false with local.participation = 'in-turn'"),
    ],
)
def test_turns_exclude_other_samplers(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(SMALL | IN_TURN | changes)
    parse(SMALL | changes)
