"""The nearest descriptors by exact search, and the nearest places."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import cKDTree

if TYPE_CHECKING:
    from torch import Tensor

#: Distances held in memory at a time.
_BLOCK = 2**22


def within(queries: np.ndarray, database: np.ndarray, radius: float) -> list[np.ndarray]:
    """For each position ``[q, 2]`` the rows, ascending, of ``database`` ``[m, 2]`` at most ``radius`` metres away."""
    if not len(queries):
        return []
    found = cKDTree(database.reshape(-1, 2)).query_ball_point(queries, radius, return_sorted=True)
    return [np.asarray(rows, dtype=np.int64) for rows in found]


def squared_distances(queries: np.ndarray, database: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances ``[q, m]`` by one product of matrices, never below 0."""
    squares = (queries**2).sum(axis=1)[:, None] + (database**2).sum(axis=1)
    distances: np.ndarray = np.maximum(squares - 2 * (queries @ database.T), 0)
    return distances


def search_torch(queries: np.ndarray, database: np.ndarray, count: int) -> np.ndarray:
    """Rows ``[q, min(count, m)]`` of the nearest in ``database`` ``[m, d]``, nearest first, of equals the first row."""
    import torch  # not above: what is near is known without it

    points, others = torch.as_tensor(database).float(), torch.as_tensor(queries).float()
    count = min(count, len(points))
    squares = points.square().sum(dim=1)
    parts = torch.split(others, max(1, _BLOCK // max(1, len(points))))
    # The query's own square changes no order.
    found = [_smallest(torch.addmm(squares, part, points.T, alpha=-2), count) for part in parts]
    return torch.cat(found).numpy()


def _smallest(distances: "Tensor", count: int) -> "Tensor":
    """Columns of the ``count`` smallest of each row, in order, of equals the first column."""
    values, columns = distances.topk(count, largest=False)
    # topk chooses among equals as it likes: put them in order, and go over the rows where some were left out.
    columns, order = columns.sort(dim=1)
    columns = columns.gather(1, values.gather(1, order).sort(dim=1, stable=True).indices)
    tied = (distances <= values[:, -1:]).sum(dim=1) > count
    columns[tied] = distances[tied].sort(dim=1, stable=True).indices[:, :count]
    return columns


def search_faiss(queries: np.ndarray, database: np.ndarray, count: int) -> np.ndarray:
    """As :func:`search_torch`, by faiss's exact index, which is faster on large databases; equals come in any order.

    Raises ``ImportError`` without the package.
    """
    try:
        faiss: Any = import_module("faiss")
    except ImportError as error:
        raise ImportError(
            "search = 'faiss': needs the package faiss-cpu; install it, or search with 'torch'"
        ) from error
    index = faiss.IndexFlatL2(database.shape[1])
    index.add(np.ascontiguousarray(database, dtype=np.float32))
    _, rows = index.search(np.ascontiguousarray(queries, dtype=np.float32), min(count, len(database)))
    return np.asarray(rows)


#: Exact searches by name.
SEARCHES: Mapping[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = MappingProxyType(
    {"torch": search_torch, "faiss": search_faiss}
)
