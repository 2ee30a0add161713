"""The local budget of a method, from what nodes report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.app.server_app import steps_per_node


def row(phase, server_round, node, **metrics):
    return {"phase": phase, "round": server_round, "node": node, "metrics": metrics}


def test_the_steps_by_hand():
    """10 + 6 steps of training on 4 nodes, and 3 + 1 before the last evaluation of 2 nodes: 16/4 + 4/2 = 6."""
    before = {"steps.count": 99.0}
    rows = [
        row("train", 1, "a", steps=10.0),
        row("evaluate", 1, "a", **before),
        row("train", 2, "b", steps=6.0),
        row("evaluate", 2, "a", **{"steps.count": 3.0}),
        row("evaluate", 2, "b", **{"steps.count": 1.0}),
    ]
    assert steps_per_node(rows, 4) == {"steps_per_node": 6.0}


def test_nodes_beyond_the_number_of_the_run_config_count():
    assert steps_per_node([row("train", 1, node, steps=4.0) for node in "abc"], 2) == {"steps_per_node": 4.0}


def test_other_replies_do_not_count():
    rows = [row("train", 1, "a", steps=8.0), row("train", 1, "b", steps=[1.0, 2.0]), row("train", 1, "c", loss=1.0)]
    assert steps_per_node(rows, 4) == {"steps_per_node": 2.0}
    assert steps_per_node(rows[1:], 4) == {}
    assert steps_per_node([], 4) == {}


@given(steps=st.lists(st.integers(0, 9), min_size=1, max_size=6), rounds=st.integers(1, 4))
def test_without_steps_before_evaluations_it_is_the_mean_of_all_training(steps, rounds):
    rows = [row("train", r, str(k), steps=float(s)) for r in range(rounds) for k, s in enumerate(steps)]
    rows += [row("evaluate", rounds, str(k), loss=1.0) for k in range(len(steps))]
    assert steps_per_node(rows, len(steps))["steps_per_node"] == pytest.approx(rounds * sum(steps) / len(steps))
