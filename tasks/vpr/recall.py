"""Recall: the share of queries whose place is found among the nearest descriptors (FedVPR, Section 5.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .nearest import nearest_rows, within


@dataclass(frozen=True)
class Recall:
    """The recall of a set of queries.

    Attributes
    ----------
    percent : dict of int to float
        ``percent[n]`` is the percentage of the counted queries with a correct image among the first n.
    queries : int
        The number of queries counted.
    without : int
        The number of queries without a correct image in the database, which do not count because no descriptor could
        find one.
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
    """Compute the recall of descriptors by exact Euclidean search.

    Parameters
    ----------
    queries : ndarray [q, d]
        Descriptors of the queries.
    database : ndarray [m, d]
        Descriptors of the database.
    true_rows : sequence of ndarray
        The database rows that show the place of each query (:func:`true_within`).
    among : sequence of int
        The numbers n of nearest images.

    Raises
    ------
    ValueError
        No query has a correct image, or descriptors are not finite.
    """
    for name, descriptors in (("query", queries), ("database", database)):
        if not np.isfinite(descriptors).all():
            raise ValueError(f"{name} descriptors are not finite: has training diverged?")
    counted = [row for row, rows in enumerate(true_rows) if len(rows)]
    if not counted:
        raise ValueError(f"none of {len(queries)} queries shows the place of one of {len(database)} database images")
    found = nearest_rows(queries[counted], database, max(among))
    hits = np.stack([np.isin(rows, true_rows[query]) for query, rows in zip(counted, found, strict=True)])
    percent = {n: 100 * int(hits[:, :n].any(axis=1).sum()) / len(counted) for n in among}
    return Recall(percent, len(counted), len(queries) - len(counted))


def true_within(queries: np.ndarray, database: np.ndarray, radius: float = 25.0) -> list[np.ndarray]:
    """Return the rows of ``database [m, 2]`` within ``radius`` metres of each of ``queries [q, 2]``."""
    return within(queries, database, radius)
