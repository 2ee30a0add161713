"""Signals that end the program, deferred while a process is started and recorded, or ended."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupts:
    """Context in which SIGINT, SIGTERM and SIGHUP raise ``KeyboardInterrupt``; signals that are ignored stay ignored.

    Enter it in the main thread.
    """

    def __init__(self) -> None:
        self._deferred = False
        self._came = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer the signals to the end of this context, which may be nested."""
        outermost, self._deferred = not self._deferred, True
        try:
            yield
        finally:
            if outermost:
                self._deferred = False
        if outermost and self._came:
            self._came = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred:
            raise KeyboardInterrupt
        self._came = True
