"""Alternating measurements of sides that do the same work, ours and references, and the peak memory of a side."""

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TypeVar

from . import commands

T = TypeVar("T")
#: Imports what some work needs, builds its inputs, and returns the work. It is sent to another process.
Prepare = Callable[[], Callable[[], object]]
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Row:
    """One comparison: medians of both sides and the ratio ours / reference within pairs.

    Attributes
    ----------
    name : str
        What is measured, with its unit.
    side : str
        The reference.
    ours, reference : float
        Medians.
    ratio, least, most : float
        The median and the range of the ratios of single pairs.
    setup : str
        Sizes and number of pairs.
    ours_megabytes, reference_megabytes : float or None
        Peak memory as of :func:`benchmarks.sides.peak_megabytes`; ``None`` if it was not measured.
    """

    name: str
    side: str
    ours: float
    reference: float
    ratio: float
    least: float
    most: float
    setup: str
    ours_megabytes: float | None
    reference_megabytes: float | None


def alternate(sides: Mapping[str, Callable[[], T]], pairs: int) -> dict[str, list[T]]:
    """Measure each side once per pair; the order of the sides is reversed in every other pair.

    Parameters
    ----------
    sides : mapping of names to functions
        Each does its work once and returns its cost, for example seconds per client.
    pairs : int
        ≥ 1.
    """
    measured: dict[str, list[T]] = {name: [] for name in sides}
    for pair in range(pairs):
        for name in list(sides)[:: 1 if pair % 2 == 0 else -1]:
            gc.collect()
            measured[name].append(sides[name]())
    return measured


def compare(
    name: str, measured: Mapping[str, Sequence[float]], ours: str, setup: str, peaks: Mapping[str, float | None]
) -> list[Row]:
    """One row for each reference; ``measured`` has those of all sides, pair by pair, ``peaks`` their memory."""
    rows = []
    for side, values in measured.items():
        if side != ours:
            ratios = sorted(a / b for a, b in zip(measured[ours], values, strict=True))
            rows.append(
                Row(name, side, median(measured[ours]), median(values), median(ratios), ratios[0], ratios[-1],
                    f"{setup}; {len(values)} pairs", peaks[ours], peaks[side])
            )  # fmt: skip
    return rows


def show(rows: Sequence[Row], path: str) -> None:
    """Print the table; append the rows to the JSON lines of a file, unless ``path`` is empty."""
    commands.show([asdict(row) for row in rows], path)


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


def proportional_megabytes(pid: int) -> float:
    """The proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def _measure(prepare: Prepare, sender: Connection) -> None:
    work = prepare()
    gc.collect()
    if trim := getattr(CDLL(None), "malloc_trim", None):
        trim(0)  # memory that preparing has freed must not hide what the work takes
    before = _megabytes("VmRSS")
    _RESET.write_text("5", encoding="utf-8")  # lowers VmHWM to the present resident set, see proc(5)
    work()
    sender.send(_megabytes("VmHWM") - before)
    os._exit(0)  # taking apart what was imported takes more than a second after torch


def _megabytes(name: str) -> float:
    """A value of the status of the process."""
    kibibytes = _STATUS.read_text(encoding="utf-8").partition(f"\n{name}:")[2].split()[0]
    return int(kibibytes) * 1024 / 1e6
