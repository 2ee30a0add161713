"""Recall: of how many queries the place is found among the nearest descriptors (FedVPR, 5.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .nearest import nearest_rows, within


@dataclass(frozen=True)
class Recall:
    """``percent[n]`` of the ``queries`` counted have a database image of their place among the first n found.

    The ``without`` other queries have no such image in the whole database: no descriptor could find it, so they do not
    count.
    """

    percent: dict[int, float]
    queries: int
    without: int


def recall(
    queries: np.ndarray,
    database: np.ndarray,
    true_rows: Sequence[np.ndarray],
    *,
    among: Sequence[int] = (1, 5, 10),
) -> Recall:
    """Recall of descriptors ``queries`` ``[q, d]`` in ``database`` ``[m, d]`` by exact Euclidean search.

    ``true_rows[i]`` are the rows of the database that show the place of query i (:func:`true_within`). Raises
    ``ValueError`` where no query has one, or descriptors are not finite.
    """
    for name, descriptors in (("query", queries), ("database", database)):
        if not np.isfinite(descriptors).all():
            raise ValueError(f"{name} descriptors are not finite: has training diverged?")
    counted = [row for row, rows in enumerate(true_rows) if len(rows)]
    if not counted:
        raise ValueError(f"none of {len(queries)} queries has an image of its place among {len(database)} of database")
    found = nearest_rows(queries[counted], database, max(among))
    hits = np.stack([np.isin(rows, true_rows[query]) for query, rows in zip(counted, found, strict=True)])
    percent = {n: 100 * int(hits[:, :n].any(axis=1).sum()) / len(counted) for n in among}
    return Recall(percent, len(counted), len(queries) - len(counted))


def true_within(queries: np.ndarray, database: np.ndarray, radius: float = 25.0) -> list[np.ndarray]:
    """Rows of ``database`` positions ``[m, 2]`` at most ``radius`` metres from each of ``queries`` ``[q, 2]``."""
    return within(queries, database, radius)
