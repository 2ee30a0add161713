"""Profile queries: whom they ask, for how long there is hope, and how many work at a time."""

import time

import pytest
from fedapps.strategies.registry import ProfileQueries
from flwr.app import Error
from flwr.common.constant import ErrorCode
from hypothesis import given
from hypothesis import strategies as st
from profile_grid import ProfileGrid

pytestmark = pytest.mark.usefixtures("flower_identity")


@pytest.fixture
def grid():
    return ProfileGrid()


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def receive(queries, grid):
    return [profile.key for profile in queries.receive(grid)]


def test_each_is_asked_once_and_heard_whenever_it_answers(grid, clock):
    queries = ProfileQueries()
    for _ in range(3):
        queries.ask([3, 1])
        assert receive(queries, grid) == []
        clock[0] += 100
    assert grid.asked == [1, 3]
    grid.nodes |= {3: "c", 1: "a"}
    assert receive(queries, grid) == ["a", "c"]
    assert receive(queries, grid) == [], "and only once"


def test_there_is_hope_until_time_is_over(grid, clock, caplog):
    queries = ProfileQueries()
    queries.timeout = 50.0
    queries.ask([1, 2])
    assert queries.pending([1, 3]) == [1]
    assert queries.seconds_since(1) is None
    receive(queries, grid)
    clock[0] = 49.0
    receive(queries, grid)
    assert queries.pending([1, 2, 3]) == [1, 2]
    assert queries.seconds_since(1) == 49.0
    grid.nodes[2] = "b"
    for _ in range(3):
        clock[0] += 2.0
        receive(queries, grid)
        assert queries.pending([1, 2, 3]) == []
    assert [record.getMessage() for record in caplog.records] == [
        "node 1 sent no profile within 50 s; it takes part after its answer"
    ]
    grid.nodes[1] = "a"
    assert receive(queries, grid) == ["a"], "late, but not lost"
    assert queries.working == 0


def test_who_is_gone_can_be_asked_again(grid):
    queries = ProfileQueries()
    queries.ask([1])
    grid.nodes[1] = Error(ErrorCode.NODE_UNAVAILABLE, "gone")
    assert receive(queries, grid) == []
    assert queries.working == 0
    queries.ask([1])
    grid.nodes[1] = "a"
    assert receive(queries, grid) == ["a"]
    assert grid.asked == [1, 1]


def test_no_more_are_asked_at_a_time_than_may_be(grid, clock):
    queries = ProfileQueries(in_flight=2)
    queries.ask([1, 2, 3, 4])
    receive(queries, grid)
    assert grid.asked == [1, 2]
    grid.nodes[2] = "b"
    assert receive(queries, grid) == ["b"]
    receive(queries, grid)
    assert grid.asked == [1, 2, 3]
    assert queries.working == 2
    clock[0] = 3601.0  # who is late is not in the way of the others
    receive(queries, grid)
    receive(queries, grid)
    assert grid.asked == [1, 2, 3, 4]


def test_those_that_work_on_other_messages_count_too(grid):
    queries = ProfileQueries(in_flight=3)
    queries.ask([1, 2, 3])
    for busy, asked in ((3, []), (4, []), (2, [1]), (2, [1]), (0, [1, 2, 3])):
        queries.receive(grid, busy)
        assert grid.asked == asked


@given(
    in_flight=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["ask", "answer", "gone", "pass"]), st.integers(1, 6), st.integers(0, 4))),
)
def test_there_are_never_more_at_work_than_may_be(in_flight, steps):
    grid, queries, answered = ProfileGrid(), ProfileQueries(in_flight), []
    for what, node, busy in steps:
        if what == "ask":
            queries.ask({*queries.pending(range(1, 7)), node} - set(answered))
        elif what != "pass":
            grid.nodes[node] = f"n{node}" if what == "answer" else Error(ErrorCode.NODE_UNAVAILABLE, "gone")
        before = queries.working
        answered += [profile.node_id for profile in queries.receive(grid, busy)]
        assert queries.working <= max(before, in_flight - busy)
    assert len(set(answered)) == len(answered), "each is heard once"
