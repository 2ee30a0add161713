"""What a split comes to: the left part of FedVPR's Table 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .clients import Client
from .places import Places


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over clients (of all of them: divided by n)."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[int]) -> "Spread":
        """Of at least one value."""
        return cls(float(np.mean(values)), float(np.std(values)))

    def __str__(self) -> str:
        return f"{self.mean:.1f} ± {self.deviation:.1f}"


@dataclass(frozen=True)
class SplitStatistics:
    """``positives`` are the queries that have a picture of the client's own database within a radius.

    ``covered`` is the share of all sequences that any client has.
    """

    clients: int
    sequences: Spread
    images: Spread
    queries: Spread
    positives: Spread
    covered: float


def split_statistics(places: Places, clients: Sequence[Client], radius: float = 10.0) -> SplitStatistics:
    """Of at least one client. ``radius`` in metres is how near a positive is (10 in training, 25 in tests)."""
    own = [client.places(places) for client in clients]
    given = {track for client in clients for track in client.tracks}
    return SplitStatistics(
        clients=len(clients),
        sequences=Spread.of([len(client.tracks) for client in clients]),
        images=Spread.of([len(part) for part in own]),
        queries=Spread.of([len(part.queries) for part in own]),
        positives=Spread.of([len(part.queries_with_positive(radius)) for part in own]),
        covered=len(given) / len(places.present),
    )


def statistics_table(splits: Mapping[str, SplitStatistics]) -> str:
    """A line of text for each split, mean ± standard deviation per client."""
    head = ["split", "clients", "sequences", "images", "queries", "with a positive", "of all sequences"]
    rows = [head] + [
        [
            name,
            str(found.clients),
            *(str(spread) for spread in (found.sequences, found.images, found.queries, found.positives)),
            f"{found.covered:.0%}",
        ]
        for name, found in splits.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))])
        for first, *rest in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
