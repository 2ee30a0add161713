"""The clock of a grid: the time in which replies arrive, of the machine or of a simulation.

A grid with simulated time is itself a :class:`Clock`: its ``now`` advances in ``wait`` only, and ``pull_messages``
returns the replies that have arrived by then. All other grids have the clock of the machine. Strategies read time from
:func:`clock_of` alone, so timeouts, deadlines and durations mean the same in both.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import NoReturn, Protocol, cast, runtime_checkable

from flwr.app import Error, Message
from flwr.serverapp import Grid

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
    """

    def __init__(self, poll: float = 0.02) -> None:
        self._pauses = pauses(poll)

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
        """Do nothing: Flower deletes replies that nobody pulls."""

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
    return cast(Clock, grid) if has_virtual_time(grid) else WallClock(poll)


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
