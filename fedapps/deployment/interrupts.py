"""Ctrl-C and its kin, which may come at any time but must not part a process from the list it is ended by."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupts:
    """Within this context SIGINT, SIGTERM and SIGHUP all raise ``KeyboardInterrupt``, unless they are ignored already.

    Enter it in the main thread.
    """

    def __init__(self) -> None:
        self._held = False
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
    def held(self) -> Iterator[None]:
        """Put them off to the end of this context."""
        outermost, self._held = not self._held, True
        try:
            yield
        finally:
            if outermost:
                self._held = False
        if outermost and self._came:
            self._came = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            raise KeyboardInterrupt
        self._came = True
