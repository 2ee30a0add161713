"""Measures how long the phases of a piece of work take: of a round on the server, or of a reply on a node."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar


class Stopwatch:
    """The seconds of each phase. Time within an inner phase counts for the inner one only.

    Attributes
    ----------
    seconds : dict of str to float
        By the name of the phase, all its time so far.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0
        self._phases: dict[str, Phase] = {}

    def phase(self, name: str) -> "Phase":
        """A context whose time counts for a phase."""
        if name not in self._phases:
            self._phases[name] = Phase(self, name)
        return self._phases[name]

    def enter(self, name: str) -> None:
        """Begin a phase within the phases that are open."""
        self._count()
        self._open.append(name)

    def exit(self) -> None:
        """End the phase that was begun last."""
        self._count()
        self._open.pop()

    def _count(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


class Phase:
    """The context of :meth:`Stopwatch.phase`. A class is faster than ``contextmanager``."""

    __slots__ = ("_name", "_watch")

    def __init__(self, watch: Stopwatch, name: str) -> None:
        self._watch, self._name = watch, name

    def __enter__(self) -> None:
        self._watch.enter(self._name)

    def __exit__(self, *error: object) -> None:
        self._watch.exit()


_running: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)


@contextmanager
def measured() -> Iterator[Stopwatch]:
    """Start a stopwatch, to which :func:`timed` adds within this context. One that was running before rests."""
    watch = Stopwatch()
    token = _running.set(watch)
    try:
        yield watch
    finally:
        _running.reset(token)


def timed(phase: str) -> AbstractContextManager[None]:
    """Count the time within this context for a phase, if a stopwatch is running."""
    watch = _running.get()
    return watch.phase(phase) if watch else nullcontext()
