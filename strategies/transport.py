"""Flower's grid: its clock, and messages that are sent and fetched one by one, for every implementation.

Calls to the SuperLink are retried after transient failures: an interrupted connection, a locked database.

Replies arrive in the time of the machine or of a simulation. A grid with simulated time is itself a :class:`Clock`: its
``now`` advances in ``wait`` only, and ``pull_messages`` returns the replies that have arrived by then. All other grids
have the clock of the machine. Strategies read time from :func:`clock_of` alone, so timeouts, deadlines and durations
mean the same in both.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from logging import WARNING
from typing import NoReturn, Protocol, TypeVar, cast, runtime_checkable

from flwr.app import Error, Message
from flwr.common import log
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from . import wire
from .checks import MAX_NAME_LENGTH, truncate

LONGEST_PAUSE = 0.5
_GROWTH = 1.5


@runtime_checkable
class Clock(Protocol):
    """The time of a grid in seconds."""

    def now(self) -> float:
        """Seconds since a fixed moment; in simulated time since the start of the run."""

    def wait(self, until: float, messages: Collection[str] | None = None) -> None:
        """Let time pass until something may have changed, at most until ``until``.

        In simulated time this is the next event: a reply that arrives, or a node that comes or goes.

        Parameters
        ----------
        until : float
            A time, which can be infinite; returns at once if it is not later than :meth:`now`.
        messages : collection of str, optional
            The ids of messages; if given, only their replies are events.

        Raises
        ------
        RuntimeError
            ``until`` is infinite, and no event will come.
        """

    def arrived_at(self, message_id: str) -> float:
        """When the reply to a message arrived that has just been pulled; the machine's clock knows only now."""

    def forget(self, message_ids: Collection[str]) -> None:
        """Note that the replies to these messages will never be pulled."""

    def evaluation(self) -> AbstractContextManager[None]:
        """The context of an evaluation. In simulated time it takes no time, and all nodes are there."""

    def due(self, message_id: str) -> tuple[float, Message]:
        """When the reply to a message in flight will arrive, and the reply; for the snapshots of simulated time."""

    def encoded(self, reply: Message) -> bytes:
        """A reply for a snapshot; equal replies have equal bytes."""

    def put_back(self, node_id: int, arrival: float, reply: bytes | Error) -> str:
        """Put a reply of a snapshot in flight, which arrives at a time; the id of its message."""

    def busy(self) -> Mapping[str, float]:
        """Until when simulated nodes work on what they have computed, by key, without those that are free."""

    def set_now(self, seconds: float, busy: Mapping[str, float] | None = None) -> None:
        """Set simulated time and what :meth:`busy` returned then, when a run resumes."""


class WallClock:
    """The clock of the machine. Each wait is 1.5 times as long as the one before, up to 0.5 s.

    Parameters
    ----------
    poll : float
        > 0, seconds of the first wait.
    grid : Grid, optional
        Flower deletes replies that nobody pulls; a grid that keeps them has a method ``forget``.
    """

    def __init__(self, poll: float = 0.02, grid: Grid | None = None) -> None:
        self._pauses = pauses(poll)
        self._grid = grid

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def wait(self, until: float, messages: Collection[str] | None = None) -> None:
        """Sleep, at most until ``until``."""
        if (left := until - self.now()) > 0:
            time.sleep(min(next(self._pauses), left))

    def arrived_at(self, message_id: str) -> float:
        """Now: when a reply was pulled."""
        return self.now()

    def forget(self, message_ids: Collection[str]) -> None:
        """Let the grid forget them, if it can."""
        if forget := getattr(self._grid, "forget", None):
            forget(message_ids)

    def evaluation(self) -> AbstractContextManager[None]:
        """A context that changes nothing."""
        return nullcontext()

    def due(self, message_id: str) -> NoReturn:
        """Raise ``TypeError``: nobody knows."""
        raise TypeError("only simulated time knows when a reply will arrive")

    def encoded(self, reply: Message) -> NoReturn:
        """Raise ``TypeError``: replies in flight are unknown."""
        raise TypeError("only simulated time keeps replies in flight")

    def put_back(self, node_id: int, arrival: float, reply: bytes | Error) -> NoReturn:
        """Raise ``TypeError``: only nodes can reply."""
        raise TypeError("only in simulated time can a reply be put back in flight")

    def busy(self) -> Mapping[str, float]:
        """No node: nobody knows."""
        return {}

    def set_now(self, seconds: float, busy: Mapping[str, float] | None = None) -> None:
        """Do nothing: time goes on while a run rests."""


def clock_of(grid: Grid, poll: float = 0.02) -> Clock:
    """The clock of a grid: the grid itself if it has simulated time, else a new :class:`WallClock`."""
    return cast(Clock, grid) if has_virtual_time(grid) else WallClock(poll, grid)


def has_virtual_time(grid: Grid) -> bool:
    """Whether a grid has simulated time."""
    return _is_clock(type(grid))


@cache
def _is_clock(kind: type[Grid]) -> bool:
    return issubclass(kind, Clock)  # a protocol compares all its methods, each time


def pauses(first: float = 0.02) -> Iterator[float]:
    """Seconds to wait between two attempts to fetch a reply: each 1.5 times the one before, up to 0.5."""
    while True:
        yield first
        first = min(first * _GROWTH, LONGEST_PAUSE)


#: Seconds before each retry; the failure after the last retry is raised.
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Exceptions that Flower raises if it cannot decode what a node sent.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError, DecodeError)
Result = TypeVar("Result")
Item = TypeVar("Item", bound="Sent")


def retry(call: Callable[[], Result]) -> Result:
    """Call a function, and retry up to five times within 31 s after failures that may be transient.

    Flower's calls can be repeated: a message that is pushed twice is delivered once.

    Parameters
    ----------
    call : function without arguments
        A call to the SuperLink.

    Returns
    -------
    object
        The result of ``call``.

    Raises
    ------
    Exception
        What ``call`` raised last; exceptions in :data:`UNREADABLE` and ``RuntimeError`` are raised at once.
    """
    for pause in PAUSES:
        try:
            return call()
        except (*UNREADABLE, RuntimeError):  # a retry would fail in the same way
            raise
        except Exception as error:  # the exception types differ between versions of Flower
            reason = truncate(f"{type(error).__name__}: {error}".partition("\n")[0], MAX_NAME_LENGTH)
            log(WARNING, "a call to the SuperLink failed (%s); retrying in %g s", reason, pause)
        time.sleep(pause)
    return call()


_SUPERLINK_ERRORS = (wire.NODE_UNAVAILABLE, wire.MESSAGE_UNAVAILABLE, wire.REPLY_UNAVAILABLE)
#: Flower's text before that of an exception of a ClientApp.
_RAISED = "Exception ClientAppException occurred. Message: "


@dataclass(frozen=True)
class NodeFailure:
    """A message without a usable reply.

    Parameters
    ----------
    node_id : int
        Flower's id of the node.
    reason : str
        Why there is no reply.
    by_node : bool
        Whether the node itself reported the failure; otherwise it did not answer or is not connected.
    """

    node_id: int
    reason: str
    by_node: bool = False

    @property
    def error(self) -> Error:
        """The error in place of a reply that stands for this failure."""
        code = wire.APP_RAISED if self.by_node else wire.NODE_UNAVAILABLE
        return Error(code, self.reason)


#: A reply, or why there is none.
Outcome = Message | NodeFailure


@dataclass(frozen=True)
class Sent:
    """A message that the grid accepted."""

    node_id: int
    message_id: str


def push(grid: Grid, messages: Iterable[Message]) -> list[Sent | NodeFailure]:
    """Send messages. Returns one item per message, in order: a failure if the grid did not accept the message."""
    sent = list(messages)
    returned = retry(lambda: list(grid.push_messages(sent)))
    # One grid omits refused messages from its result, another returns an empty id for them. Both write ids into the
    # messages, which identify the accepted ones. A grid that writes no ids must return one id per message.
    ids: Sequence[str | None] = [message.metadata.message_id for message in sent]
    if any(ids):
        accepted = set(returned)
        ids = [message_id if message_id in accepted else None for message_id in ids]
    elif len(returned) == len(sent):
        ids = [message_id or None for message_id in returned]
    else:
        ids = [None] * len(sent)
    return [_sent(message.metadata.dst_node_id, message_id) for message, message_id in zip(sent, ids, strict=True)]


def pull(grid: Grid, sent: Sent) -> Outcome | None:
    """Fetch the reply to a message.

    Returns
    -------
    Message, NodeFailure or None
        The reply with its content; a failure if the reply is an error or cannot be decoded; ``None`` if there is no
        reply yet.
    """
    try:
        replies = retry(lambda: list(grid.pull_messages([sent.message_id])))
        reply = next((reply for reply in replies if reply.metadata.reply_to_message_id == sent.message_id), None)
    except UNREADABLE as error:  # raised when Flower decodes what the node sent
        return NodeFailure(sent.node_id, f"the reply cannot be decoded: {type(error).__name__}: {error}", by_node=True)
    return None if reply is None else outcome_of(sent, reply)


def is_immediate(grid: Grid) -> bool:
    """Whether a grid computes a reply when it is pulled, as that of one process does: it has ``immediate = True``."""
    return bool(getattr(grid, "immediate", False))


def pull_together(grid: Grid, sent: Sequence[Item]) -> list[tuple[Item, Outcome]]:
    """Fetch the replies that are there with one request, in the order of ``sent``; for grids of a simulation.

    Raises
    ------
    Exception
        As the grid raises. A reply that cannot be decoded fails the request, unlike in :func:`pull`.
    """
    replies = {
        reply.metadata.reply_to_message_id: reply
        for reply in retry(lambda: list(grid.pull_messages([item.message_id for item in sent])))
    }
    return [(item, outcome_of(item, replies[item.message_id])) for item in sent if item.message_id in replies]


def outcome_of(sent: Sent, reply: Message) -> Outcome:
    """A reply, or the failure that it reports."""
    if not reply.has_error():
        return reply
    by_node = reply.error.code not in _SUPERLINK_ERRORS
    # What a ClientApp raised is the end of Flower's text; in Ray, a traceback that is in the log already precedes it.
    reason = reply.error.reason or f"error {reply.error.code} without a reason"
    _, flowers, raised = reason.rpartition(_RAISED)
    return NodeFailure(sent.node_id, raised.removesuffix("'>") if flowers else reason, by_node)


def _sent(node_id: int, message_id: str | None) -> Sent | NodeFailure:
    if message_id is None:
        return NodeFailure(node_id, "the message was not accepted: the node is unknown or the message too large")
    return Sent(node_id, message_id)
