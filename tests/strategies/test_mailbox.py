"""Messages and replies: their order, early replies, the limit of messages in flight, and time limits."""

import gc
import itertools
import time
import weakref
from math import inf

import pytest
from counted_grid import CountedGrid, exchange, messages, outcome
from fedapps.strategies.mailbox import Mailbox
from fedapps.strategies.profiles import Profile
from fedapps.strategies.transport import NodeFailure
from flwr.app import Error
from flwr.clientapp.client_app import ClientAppException
from flwr.common.constant import ErrorCode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def test_replies_come_in_the_order_of_the_messages():
    grid = CountedGrid({5: 3, 2: 0, 9: 1})
    assert outcome(exchange(grid, messages(5, 2, 9), 10, poll=1e-4)) == [5, 2, 9]
    assert grid.pulls == ["id-5"] * 4 + ["id-2"] + ["id-9"] * 2


def test_errors_and_silence_are_failures_and_the_others_are_still_taken():
    in_ray = f"<class 'RayTaskError'>:<'ray::run()\n  File\nValueError: no b\n{ClientAppException('no b')}'>"
    grid = CountedGrid({1: Error(0, "out of memory"), 2: None, 3: 0, 4: Error(7), 5: Error(2, in_ray)})
    began = time.monotonic()
    items = list(exchange(grid, messages(1, 2, 3, 4, 5), 0.05, poll=0.01))
    assert time.monotonic() - began < 5
    assert outcome(items) == [
        NodeFailure(1, "out of memory", by_node=True),
        NodeFailure(2, "no reply within 0.05 s"),
        3,
        NodeFailure(4, "error 7 without a reason", by_node=True),
        NodeFailure(5, "no b", by_node=True),
    ]


def test_a_timeout_of_zero_looks_once_at_every_node():
    grid = CountedGrid({1: 0, 2: 1})
    assert outcome(exchange(grid, messages(1, 2), 0)) == [1, NodeFailure(2, "no reply within 0 s")]
    assert grid.pulls == ["id-1", "id-2"]


def test_nothing_to_send_sends_nothing():
    assert list(exchange(None, [], 1)) == []


class ImmediateGrid(CountedGrid):
    """Its replies can be pulled together."""

    immediate = True

    def pull_messages(self, message_ids):
        before, pull = self.pulls, super().pull_messages
        found = [reply for message_id in message_ids for reply in pull([message_id])]
        self.pulls = [*before[: len(before) - len(message_ids)], list(message_ids)]
        return found


def test_replies_that_are_computed_when_they_are_pulled_are_pulled_together():
    grid = ImmediateGrid({1: 0, 2: Error(0, "out of memory"), 3: 0, 4: 0, 5: 0})
    failure = NodeFailure(2, "out of memory", by_node=True)
    assert outcome(exchange(grid, messages(1, 2, 3, 4, 5), 10, together=2)) == [1, failure, 3, 4, 5]
    assert grid.pulls == [["id-1", "id-2"], ["id-3", "id-4"], ["id-5"]]


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 4), st.none() | st.integers(1, 3))
def test_pulling_together_changes_neither_the_order_nor_what_comes(looks, together, in_flight):
    nodes = range(1, len(looks) + 1)
    grid = ImmediateGrid(dict(zip(nodes, looks, strict=True)))
    items = exchange(grid, messages(*nodes), inf, poll=1e-6, ahead=1, together=together, in_flight=in_flight)
    assert outcome(items) == list(nodes)


@pytest.mark.slow
def test_no_reply_is_held_while_the_next_one_is_awaited(monkeypatch):
    grid, seen = CountedGrid({1: 0, 2: 3, 3: 0}), []

    def check(seconds):
        gc.collect()
        assert not any(reference() for reference in seen)

    monkeypatch.setattr(time, "sleep", check)
    items = exchange(grid, messages(1, 2, 3), 3600)  # collecting garbage takes its time on a busy machine
    for _ in range(3):
        reply = next(items)
        seen.append(weakref.ref(reply.content))
        del reply
    gc.collect()
    assert not any(reference() for reference in seen)


def test_what_comes_before_its_turn_is_fetched_while_a_slow_node_is_awaited():
    grid = CountedGrid({1: 3, 2: 1, 3: 0, 4: 0, 5: 0})
    replies = exchange(grid, messages(1, 2, 3, 4, 5), 10, poll=1e-4, ahead=2)
    assert outcome([next(replies)]) == [1]
    # 3 is there at once and 4 at the second look; then there is no room for more
    assert grid.pulls == ["id-1", "id-2", "id-3", "id-1", "id-4", "id-1", "id-1"]
    assert outcome(replies) == [2, 3, 4, 5]
    assert grid.pulls[7:] == ["id-2", "id-5"], "what is here is not asked for again"


def with_at_most(most, grid):
    """The grid, which now checks at each push that no more than ``most()`` messages are in flight."""
    came, push, pull = set(), grid.push_messages, grid.pull_messages

    def push_few(messages):
        ids = push(messages)
        assert len(grid.sent.keys() - came) <= most()
        return ids

    def pull_one(ids):
        if replies := pull(ids):
            came.update(ids)
        return replies

    grid.push_messages, grid.pull_messages = push_few, pull_one
    return grid


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.integers(0, 6), st.integers(1, 10))
def test_no_more_are_in_flight_than_may_be(looks, ahead, in_flight):
    nodes = range(1, len(looks) + 1)
    grid = with_at_most(lambda: in_flight, CountedGrid(dict(zip(nodes, looks, strict=True))))
    assert outcome(exchange(grid, messages(*nodes), inf, poll=1e-6, ahead=ahead, in_flight=in_flight)) == list(nodes)
    assert [node for pushed in grid.pushes for node in pushed] == list(nodes)
    if in_flight >= len(looks):
        assert len(grid.pushes) == 1, "all at once, as without a limit"


def test_the_next_is_sent_when_a_later_one_has_replied():
    grid = CountedGrid({1: 2, 2: 0, 3: 0, 4: 0})
    assert outcome(exchange(grid, messages(1, 2, 3, 4), 10, poll=1e-4, ahead=4, in_flight=2)) == [1, 2, 3, 4]
    assert grid.pushes == [[1, 2], [3], [4]]
    assert grid.pulls == ["id-1", "id-2", "id-1", "id-3", "id-1", "id-4"], "the last one came before its turn"


@pytest.mark.parametrize(("in_flight", "seconds"), [(None, 1), (4, 1), (2, 2), (1, 4)])
def test_the_time_of_each_runs_from_the_moment_it_is_sent(monkeypatch, in_flight, seconds):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda nap: clock.__setitem__(0, clock[0] + nap))
    nodes = [1, 2, 3, 4]
    silent = outcome(exchange(CountedGrid({}), messages(*nodes), 1, in_flight=in_flight))
    assert silent == [NodeFailure(node, "no reply within 1 s") for node in nodes]
    assert clock[0] == pytest.approx(seconds)


@given(busy=st.lists(st.integers(0, 5), min_size=1, max_size=30), in_flight=st.integers(1, 4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_other_messages_take_room_but_for_one(busy, in_flight):
    nodes, others = range(1, 8), itertools.cycle(busy)
    working = [0]
    grid = with_at_most(lambda: max(1, in_flight - working[0]), CountedGrid(dict.fromkeys(nodes, 1)))

    def other_messages():
        working[0] = next(others)
        return working[0]

    items = exchange(grid, messages(*nodes), inf, poll=1e-6, in_flight=in_flight, count_busy=other_messages)
    assert outcome(items) == list(nodes)


def test_a_message_that_was_refused_makes_room():
    grid = CountedGrid({1: 0, 2: 0, 3: 0}, refused=[1, 2])
    items = outcome(exchange(grid, messages(1, 2, 3), 10, in_flight=1))
    assert [getattr(item, "node_id", item) for item in items] == [1, 2, 3]


def test_a_reply_that_came_in_time_is_not_lost_with_its_node():
    grid = CountedGrid({1: 3, 2: 0})
    replies = exchange(grid, messages(1, 2), 10, poll=1e-4, ahead=1)
    next(replies)
    grid.sent["id-2"][1] = Error(ErrorCode.NODE_UNAVAILABLE, "node unavailable")
    assert outcome(replies) == [2]


def in_the_order_of_arrival(grid, nodes, timeout, ahead=0):
    mailbox = Mailbox(grid, in_order=False, poll=1e-6)
    mailbox.post([(Profile.unknown(node), *messages(node)) for node in nodes], timeout, ahead=ahead)
    return mailbox


def test_a_reply_that_is_there_counts_among_many_nodes_whose_time_is_over():
    nodes = range(1, 201)
    mailbox, found = in_the_order_of_arrival(CountedGrid({150: 0}), nodes, 0), []
    while mailbox:
        if arrival := mailbox.next():
            found.append(arrival.outcome)
    assert len(found) == 200
    assert [reply for reply in outcome(found) if not isinstance(reply, NodeFailure)] == [150]


@pytest.mark.parametrize(("ahead", "busy"), [(0, {2, 3, 4, 5, 6}), (3, {4, 5, 6}), (9, {6})])
def test_all_nodes_whose_replies_are_there_are_free_as_far_as_replies_may_be_kept(ahead, busy):
    mailbox = in_the_order_of_arrival(CountedGrid(dict.fromkeys(range(1, 6), 0)), range(1, 7), 9, ahead)
    mailbox.look_on()
    assert mailbox.busy == busy


def test_looks_grow_rarer_and_begin_anew(monkeypatch):
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    list(exchange(CountedGrid({1: 9, 2: 1}), messages(1, 2), inf, poll=0.04))
    assert naps[:3] == pytest.approx([0.04, 0.06, 0.09])
    assert naps[7:9] == [0.5, 0.5]
    assert naps[9:] == [0.04]


def test_on_wait_is_called_after_each_attempt_that_finds_no_reply():
    looks = []
    list(exchange(CountedGrid({1: 2, 2: 0, 3: 1}), messages(1, 2, 3), 10, poll=1e-6, on_wait=looks.append))
    assert looks == [3, 3, 1], "of how many nodes are at work"


def test_ranges_are_checked_at_the_call():
    with pytest.raises(ValueError, match="timeout = -1"):
        exchange(None, [], -1)
    with pytest.raises(ValueError, match="poll = 0"):
        exchange(None, [], 1, poll=0)
