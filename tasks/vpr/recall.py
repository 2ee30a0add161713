"""Recall: the share of queries whose place is found among the nearest descriptors (FedVPR, Section 5.1).

The search for the nearest descriptors and for nearby positions is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from fedapps.base.errors import DivergedError

#: Maximum number of distances in memory.
_BLOCK = 2**22


def within(queries: np.ndarray, database: np.ndarray, radius: float) -> list[np.ndarray]:
    """Return, for each position ``[q, 2]``, the rows of ``database [m, 2]`` within ``radius`` metres, ascending."""
    if not len(queries):
        return []
    neighbours = cKDTree(database.reshape(-1, 2)).query_ball_point(queries, radius, return_sorted=True)
    return [np.asarray(rows, dtype=np.int64) for rows in neighbours]


def squared_distances(queries: np.ndarray, database: np.ndarray) -> np.ndarray:
    """Return squared Euclidean distances ``[q, m]``, computed by a matrix product and clipped at 0."""
    squares = (queries**2).sum(axis=1)[:, None] + (database**2).sum(axis=1)
    distances: np.ndarray = np.maximum(squares - 2 * (queries @ database.T), 0)
    return distances


def nearest_rows(queries: np.ndarray, database: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the nearest vectors.

    Parameters
    ----------
    queries : ndarray [q, d]
        The vectors to search for.
    database : ndarray [m, d]
        The vectors to search in.
    count : int
        The number of neighbours.

    Returns
    -------
    ndarray [q, min(count, m)]
        Rows of the database, nearest first. The first row wins ties.
    """
    points, others = torch.as_tensor(database).float(), torch.as_tensor(queries).float()
    count = min(count, len(points))
    squares = points.square().sum(dim=1)
    parts = torch.split(others, max(1, _BLOCK // max(1, len(points))))
    # The squared norm of the query does not change the order.
    nearest = [_smallest(torch.addmm(squares, part, points.T, alpha=-2), count) for part in parts]
    return torch.cat(nearest).numpy()


def _smallest(distances: Tensor, count: int) -> Tensor:
    """The columns of the ``count`` smallest values of each row, in order; the first column wins ties."""
    values, columns = distances.topk(count, largest=False)
    # topk resolves ties arbitrarily: sort its choice by column, and redo the rows in which a tie was cut off.
    columns, order = columns.sort(dim=1)
    columns = columns.gather(1, values.gather(1, order).sort(dim=1, stable=True).indices)
    tied = (distances <= values[:, -1:]).sum(dim=1) > count
    columns[tied] = distances[tied].sort(dim=1, stable=True).indices[:, :count]
    return columns


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
        No query has a correct image.
    DivergedError
        Descriptors are not finite.
    """
    for name, descriptors in (("query", queries), ("database", database)):
        if not np.isfinite(descriptors).all():
            raise DivergedError(f"{name} descriptors are not finite: has training diverged?")
    counted = [row for row, rows in enumerate(true_rows) if len(rows)]
    if not counted:
        raise ValueError(f"none of {len(queries)} queries shows the place of one of {len(database)} database images")
    nearest = nearest_rows(queries[counted], database, max(among))
    hits = np.stack([np.isin(rows, true_rows[query]) for query, rows in zip(counted, nearest, strict=True)])
    percent = {n: 100 * int(hits[:, :n].any(axis=1).sum()) / len(counted) for n in among}
    return Recall(percent, len(counted), len(queries) - len(counted))


def true_within(queries: np.ndarray, database: np.ndarray, radius: float = 25.0) -> list[np.ndarray]:
    """Return the rows of ``database [m, 2]`` within ``radius`` metres of each of ``queries [q, 2]``."""
    return within(queries, database, radius)
