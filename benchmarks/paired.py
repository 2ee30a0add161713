"""Two strategies measured in pairs: ratios within each pair, medians over pairs, the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from fedapps.runs.tables import number, text_table

_HEADER = ("seconds", "first round", "later rounds", "nodes", "fetch", "server", "peak MB")


@dataclass(frozen=True)
class Took:
    """What one run took.

    ``first`` are the seconds of the first round. Of a later one, ``later`` are all, ``nodes`` those that pass until
    the last node has made its reply and ``fetch`` those until the server then holds it, each in the mean over the
    rounds: Flower's grid looks every 3 s, so a single round of it tells little. ``peak`` are megabytes that the
    process of the ServerApp held at most.
    """

    first: float
    later: float
    nodes: float
    fetch: float
    peak: float

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> "Took":
        """From what the ServerApp left. Raises ``ValueError`` where it tells of fewer than two rounds."""
        first, *others = told["rounds"]
        if not others:
            raise ValueError("one round was measured: at least two are needed, because the first is told apart")
        later, nodes, fetch = (fmean(took[part] for took in others) for part in ("seconds", "nodes", "fetch"))
        return cls(first["seconds"], later, nodes, fetch, told["peak_megabytes"])

    @property
    def server(self) -> float:
        """Seconds of a later round in which the server neither waited for nodes nor fetched their last replies."""
        return self.later - self.nodes - self.fetch

    def cells(self) -> list[float]:
        """In the order of the table's columns."""
        return [self.first, self.later, self.nodes, self.fetch, self.server, self.peak]


@dataclass(frozen=True)
class Pair:
    """A run of each strategy, one right after the other, and how far the parameters they end with are apart."""

    flower: Took
    ours: Took
    difference: float

    def ratio(self) -> float:
        """Seconds of a later round, ours through Flower's: below 1 ours is faster."""
        return self.ours.later / self.flower.later


def report(megabytes: float, pairs: Sequence[Pair]) -> str:
    """The table of one size of the model, medians over its pairs, and what it comes to."""
    sides = {"Flower's FedAvg": [pair.flower for pair in pairs], "BaseStrategy": [pair.ours for pair in pairs]}
    rows = [
        [name, *(number(median(column)) for column in zip(*(took.cells() for took in runs), strict=True))]
        for name, runs in sides.items()
    ]
    ratios = sorted(pair.ratio() for pair in pairs)
    return (
        f"{megabytes:g} MB\n{text_table(_HEADER, rows)}\n"
        f"later rounds, ours / Flower's: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(pairs)} "
        f"pairs); final parameters differ by {max(pair.difference for pair in pairs):.1g} at most"
    )
