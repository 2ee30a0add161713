"""Refused messages, failed calls and replies that cannot be decoded."""

import logging

import pytest
from counted_grid import CountedGrid, exchange, messages, outcome
from fedapps.strategies import transport
from fedapps.strategies.transport import NodeFailure, retry
from flwr.app import Error
from flwr.common.constant import ErrorCode


@pytest.mark.parametrize("style", ["left-out", "empty", "unmarked"])
def test_refused_messages_are_failures_of_the_right_nodes(style):
    items = outcome(exchange(CountedGrid({1: 0, 2: 0, 3: 0}, refused=[2], style=style), messages(1, 2, 3), 1))
    assert [items[0], items[2]] == [1, 3]
    assert items[1].node_id == 2
    assert "not accepted" in items[1].reason


def test_all_messages_refused():
    items = outcome(exchange(CountedGrid({}, refused=[1, 2]), messages(1, 2), 1))
    assert [item.node_id for item in items] == [1, 2]


def test_a_reply_that_cannot_be_read_is_a_failure_of_its_node_alone():
    replies = {1: 2, 2: ValueError("no such object type"), 3: 0}
    for ahead in (0, 2):
        items = list(exchange(CountedGrid(dict(replies)), messages(1, 2, 3), 10, poll=1e-4, ahead=ahead))
        reason = "the reply cannot be decoded: ValueError: no such object type"
        assert outcome(items) == [1, NodeFailure(2, reason, by_node=True), 3]


def test_what_breaks_on_the_way_is_no_fault_of_a_node(monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0, 0.0))
    grid = CountedGrid({1: ConnectionError("the SuperLink is gone")})
    with pytest.raises(ConnectionError):
        list(exchange(grid, messages(1), 10))
    assert len(grid.pulls) == 3


def test_a_push_that_failed_for_a_moment_is_repeated(monkeypatch):
    monkeypatch.setattr(transport, "PAUSES", (0.0,))
    grid, failures = CountedGrid({1: 0, 2: 0}), [OSError("database is locked")]
    push = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda sent: fail(failures.pop()) if failures else push(sent))
    assert outcome(exchange(grid, messages(1, 2), 10)) == [1, 2]


def fail(error):
    raise error


def test_who_is_gone_has_not_said_so_itself():
    gone = [ErrorCode.NODE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE]
    replies = {node: Error(code, "?") for node, code in enumerate([*gone, ErrorCode.CLIENT_APP_RAISED_EXCEPTION], 1)}
    items = exchange(CountedGrid(replies), messages(1, 2, 3, 4), 10)
    assert [item.by_node for item in items] == [False, False, False, True]


class Failing:
    """Raises the errors, one at a call, then answers."""

    def __init__(self, *errors):
        self.errors, self.calls = list(errors), 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


@pytest.fixture
def naps(monkeypatch):
    slept = []
    monkeypatch.setattr(transport.time, "sleep", slept.append)
    return slept


def test_it_asks_again_with_longer_and_longer_pauses(naps, caplog):
    class PushError(Exception):
        pass

    with caplog.at_level(logging.WARNING):
        assert retry(Failing(PushError("locked\nby others"), OSError("gone"))) == "answer"
    assert naps == [1, 2]
    assert "a call to the SuperLink failed (PushError: locked); retrying in 1 s" in caplog.text


def test_after_the_last_time_the_failure_is_raised(naps):
    ask = Failing(*[OSError(str(number)) for number in range(9)])
    with pytest.raises(OSError, match="5"):
        retry(ask)
    assert (ask.calls, sum(naps)) == (6, 31)


@pytest.mark.parametrize("error", [ValueError, TypeError, KeyError, RuntimeError])
def test_what_would_not_mend_is_raised_at_once(naps, error):
    with pytest.raises(error):
        retry(Failing(error("x")))
    assert naps == []


def test_an_interrupt_is_not_put_off(naps):
    with pytest.raises(KeyboardInterrupt):
        retry(Failing(KeyboardInterrupt()))
    assert naps == []
