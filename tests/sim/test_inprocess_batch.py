"""Nodes of the in-process engine that run side by side."""

import pytest
from fedapps.sim.inprocess import InProcessGrid, NodeError, run_inprocess
from fedapps.sim.joint_work import jointly
from inprocess_apps import ask, asked, client, metrics, partition, server


def groups(jobs, states):
    """Tell each job with which others it was done."""
    return [list(jobs)] * len(jobs)


def met(message, context):
    return {"with": jointly(groups, context.node_config["partition-id"])}


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, [[0], [1], [2]]), (2, [[0, 1], [0, 1], [2]]), (9, [[0, 1, 2]] * 3)]
)
def test_as_many_nodes_as_a_batch_has_work_together(batch, expected):
    replies = asked(client(met), num_nodes=3, batch=batch)
    assert metrics(replies) == [{"with": group} for group in expected]


def test_a_node_with_two_messages_runs_once_at_a_time():
    found = []
    first, second, third = range(2, 5)
    run_inprocess(
        server(lambda grid, _: found.extend(ask(grid, [first, second, first, third]))),
        client(met),
        num_nodes=3,
        batch=9,
    )
    assert metrics(found) == [{"with": [0, 1]}, {"with": [0, 1]}, {"with": [0, 2]}, {"with": [0, 2]}]


def test_a_node_that_fails_ends_alone():
    def failing(message, context):
        if context.node_config["partition-id"] == 1:
            raise KeyError("the culprit")
        return met(message, context)

    replies = asked(client(failing), num_nodes=3, batch=3, errors="reply")
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert metrics([replies[0], replies[2]]) == [{"with": [0, 2]}] * 2
    with pytest.raises(NodeError, match=r"(?s)partition 1.*the culprit"):
        asked(client(failing), num_nodes=3, batch=3)


def test_a_batch_of_no_nodes_is_refused():
    with pytest.raises(ValueError, match="batch = 0: must be at least 1"):
        InProcessGrid(client(partition), [{}], {}, batch=0)
