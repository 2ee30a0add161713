"""Peak memory of a piece of work: a new process does the work and measures how far its resident memory rises."""

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

#: Imports what some work needs, builds its inputs, and returns the work. It is sent to another process.
Prepare = Callable[[], Callable[[], object]]
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_megabytes(prepare: Prepare) -> float | None:
    """By how many megabytes work raises the memory of a new process at most; ``None`` on systems other than Linux.

    This is the greatest resident set during the work (``VmHWM``) less the resident set before it. What ``prepare``
    imports and builds does not count.

    Raises
    ------
    RuntimeError
        The process ended without a result; its error is on stderr.
    """
    if not _RESET.exists():
        return None
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(prepare, sender))
    process.start()
    sender.close()
    try:
        return float(receiver.recv())
    except EOFError as error:
        raise RuntimeError("the process that measures peak memory failed; its error is above") from error
    finally:
        process.join()


def resident_megabytes() -> float | None:
    """The resident set of this process in megabytes; ``None`` on systems other than Linux."""
    return _megabytes("VmRSS") if _STATUS.exists() else None


def megabytes(value: float | None) -> str:
    """A cell of a table: whole megabytes, or - if they were not measured."""
    return "-" if value is None else f"{value:.0f}"


def _measure(prepare: Prepare, sender: Connection) -> None:
    work = prepare()
    before = _megabytes("VmRSS")
    _RESET.write_text("5")  # lowers VmHWM to the present resident set, see proc(5)
    work()
    sender.send(_megabytes("VmHWM") - before)
    os._exit(0)  # taking apart what was imported takes more than a second after torch


def _megabytes(name: str) -> float:
    """A value of the status of the process."""
    kibibytes = _STATUS.read_text().partition(f"\n{name}:")[2].split()[0]
    return int(kibibytes) * 1024 / 1e6
