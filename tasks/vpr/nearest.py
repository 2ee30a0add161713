"""Exact search for nearest descriptors and nearby positions."""

from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial import cKDTree

if TYPE_CHECKING:
    from torch import Tensor

#: Maximum number of distances in memory.
_BLOCK = 2**22


def within(queries: np.ndarray, database: np.ndarray, radius: float) -> list[np.ndarray]:
    """Return, for each position ``[q, 2]``, the rows of ``database [m, 2]`` within ``radius`` metres, ascending."""
    if not len(queries):
        return []
    found = cKDTree(database.reshape(-1, 2)).query_ball_point(queries, radius, return_sorted=True)
    return [np.asarray(rows, dtype=np.int64) for rows in found]


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
    import torch  # imported here because the split of a data set needs no torch

    points, others = torch.as_tensor(database).float(), torch.as_tensor(queries).float()
    count = min(count, len(points))
    squares = points.square().sum(dim=1)
    parts = torch.split(others, max(1, _BLOCK // max(1, len(points))))
    # The squared norm of the query does not change the order.
    found = [_smallest(torch.addmm(squares, part, points.T, alpha=-2), count) for part in parts]
    return torch.cat(found).numpy()


def _smallest(distances: "Tensor", count: int) -> "Tensor":
    """The columns of the ``count`` smallest values of each row, in order; the first column wins ties."""
    values, columns = distances.topk(count, largest=False)
    # topk resolves ties arbitrarily: sort its choice by column, and redo the rows in which a tie was cut off.
    columns, order = columns.sort(dim=1)
    columns = columns.gather(1, values.gather(1, order).sort(dim=1, stable=True).indices)
    tied = (distances <= values[:, -1:]).sum(dim=1) > count
    columns[tied] = distances[tied].sort(dim=1, stable=True).indices[:, :count]
    return columns
