"""Paired measurements of two strategies: ratios within each pair, medians over the pairs, and their table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedapps.runs.tables import number, text_table

_HEADER = ("seconds", "first round", "later rounds", "nodes", "fetch", "server", "peak MB")


@dataclass(frozen=True)
class RunTime:
    """Times of one run in seconds. Times of later rounds are means, because Flower's grid polls only every 3 s.

    Attributes
    ----------
    first : float
        Duration of the first round.
    later : float
        Duration of a later round.
    nodes : float
        Time in a later round until the last node has replied, summed over its exchanges.
    fetch : float
        Time in a later round from then until the server has fetched that reply, summed over its exchanges.
    peak : float
        Peak memory of the ServerApp process in megabytes.
    """

    first: float
    later: float
    nodes: float
    fetch: float
    peak: float

    @classmethod
    def read(cls, measured: Mapping[str, Any]) -> "RunTime":
        """Parse the ``rounds.json`` that the ServerApp wrote.

        Raises
        ------
        ValueError
            If it has fewer than two rounds.
        """
        first, *others = measured["rounds"]
        if not others:
            raise ValueError("only one round was measured: at least two are needed, because the first is separate")
        later, nodes, fetch = (fmean(one[part] for one in others) for part in ("seconds", "nodes", "fetch"))
        return cls(first["seconds"], later, nodes, fetch, measured["peak_megabytes"])

    @property
    def server(self) -> float:
        """Time in a later round in which the server neither waits for nodes nor fetches the last reply."""
        return self.later - self.nodes - self.fetch

    def cells(self) -> list[float]:
        """The values in the order of the table's columns."""
        return [self.first, self.later, self.nodes, self.fetch, self.server, self.peak]


@dataclass(frozen=True)
class Pair:
    """One run of each strategy, directly after each other; ``difference`` is that of their final parameters."""

    flower: RunTime
    ours: RunTime
    difference: float

    def ratio(self) -> float:
        """Duration of a later round, ours divided by Flower's; below 1 if ours is faster."""
        return self.ours.later / self.flower.later


def report(megabytes: float, pairs: Sequence[Pair]) -> str:
    """The table of one model size: medians over the pairs, and the ratio of the durations."""
    sides = {"Flower's FedAvg": [pair.flower for pair in pairs], "BaseStrategy": [pair.ours for pair in pairs]}
    rows = [
        [name, *(number(median(column)) for column in zip(*(run.cells() for run in runs), strict=True))]
        for name, runs in sides.items()
    ]
    ratios = sorted(pair.ratio() for pair in pairs)
    return (
        f"{megabytes:g} MB\n{text_table(_HEADER, rows)}\n"
        f"later rounds, ours / Flower's: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(pairs)} "
        f"pairs); final parameters differ by at most {max(pair.difference for pair in pairs):.1g}"
    )
