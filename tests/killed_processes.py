"""A process that is killed before one of its changes of files and folders."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

import pytest

WRITES = {"open", "os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "shutil.rmtree"}


class KilledError(BaseException):
    """Ends what a node does, as a signal would: not even a ``finally`` can write any more."""


@contextmanager
def killed_in(function: str, when: Callable[..., bool] = lambda *given, **named: True) -> Iterator[None]:
    """Within this context a process is killed in a function of fedapps, at the first call that ``when`` is true of."""
    whole = resolve_name(f"fedapps.{function}")

    def killed(*given: Any, **named: Any) -> Any:
        if when(*given, **named):
            raise KilledError
        return whole(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"fedapps.{function}", killed)
        with pytest.raises(KilledError):
            yield


@contextmanager
def killed_before(write: int) -> Iterator[list[str]]:
    """Nothing is written within this context from the ``write``-th change of a file or folder on, counted from 0."""
    changes: list[str] = []
    _Kill.now = lambda event: (changes.append(event), len(changes) > write)[1]
    try:
        yield changes
    finally:
        _Kill.now = None


class _Kill:
    now = None


def _kill(event, arguments):
    if _Kill.now and event in WRITES and not (event == "open" and arguments[1] in ("r", "rb")) and _Kill.now(event):
        raise KilledError


sys.addaudithook(_kill)
