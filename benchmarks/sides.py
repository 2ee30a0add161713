"""Alternating measurements of sides that do the same work: ours and references, with ratios and their spread."""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from fedapps.runs.tables import number, text_table

from .peak import megabytes

_HEADER = ("what", "side", "ours", "reference", "ratio", "least", "most", "goal", "ours [MB]", "reference [MB]")


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
    goal : str
        What ``ours`` or ``ratio`` must reach; empty without a goal.
    setup : str
        Sizes and number of pairs.
    ours_megabytes, reference_megabytes : float or None
        Peak memory as of :func:`benchmarks.peak.peak_megabytes`; ``None`` if it was not measured.
    """

    name: str
    side: str
    ours: float
    reference: float
    ratio: float
    least: float
    most: float
    goal: str
    setup: str
    ours_megabytes: float | None
    reference_megabytes: float | None


def alternate(sides: Mapping[str, Callable[[], float]], pairs: int) -> dict[str, list[float]]:
    """Measure each side once per pair; the order of the sides is reversed in every other pair.

    Parameters
    ----------
    sides : mapping of names to functions
        Each does its work once and returns its cost, for example seconds per client.
    pairs : int
        ≥ 1.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(pairs):
        for name in list(sides)[:: 1 if pair % 2 == 0 else -1]:
            gc.collect()
            found[name].append(sides[name]())
    return found


def compare(
    name: str,
    found: Mapping[str, Sequence[float]],
    ours: str,
    goal: str,
    setup: str,
    peaks: Mapping[str, float | None],
) -> list[Row]:
    """One row for each reference; ``found`` has the measurements of all sides, pair by pair, ``peaks`` their memory."""
    rows = []
    for side, values in found.items():
        if side != ours:
            ratios = sorted(a / b for a, b in zip(found[ours], values, strict=True))
            rows.append(
                Row(name, side, median(found[ours]), median(values), median(ratios), ratios[0], ratios[-1], goal,
                    f"{setup}; {len(values)} pairs", peaks[ours], peaks[side])
            )  # fmt: skip
    return rows


def show(rows: Sequence[Row], path: str) -> None:
    """Print the table; append the rows to the JSON lines of a file, unless ``path`` is empty."""
    cells = [
        [
            row.name,
            row.side,
            *map(number, (row.ours, row.reference, row.ratio, row.least, row.most)),
            row.goal,
            *map(megabytes, (row.ours_megabytes, row.reference_megabytes)),
        ]
        for row in rows
    ]
    print(text_table(_HEADER, cells), flush=True)
    if path:
        with Path(path).open("a") as lines:
            lines.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
