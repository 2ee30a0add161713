"""Retrieval in the images of one node: recall, and mining of triplets.

Recall is the share of queries whose place is found among the nearest descriptors (FedVPR, Section 5.1). The search for
the nearest descriptors and for nearby positions is exact.

Triplets are mined as in FedVPR, Sections 3.1 and 3.2, and the benchmark of Berton et al., CVPR 2022. Which images are
near each other is known in advance (:class:`Miner`). Which of them look alike depends on the weights, so triplets are
mined repeatedly, each time for some of the queries, in a *pool* of drawn database images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from fedapps.base.errors import DivergedError

#: Maximum number of distances in memory.
_DISTANCES_AT_ONCE = 2**22


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
    parts = torch.split(others, max(1, _DISTANCES_AT_ONCE // max(1, len(points))))
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


def recall(
    queries: np.ndarray, database: np.ndarray, true_rows: Sequence[np.ndarray], *, among: Sequence[int] = (1, 5, 10)
) -> dict[int, float]:
    """Return the percentage of the queries with a correct image among the first n, for each n of ``among``.

    The search is exact and Euclidean. Queries without a correct image in the database do not count, because no
    descriptor could find one; nothing is returned if all are such.

    Parameters
    ----------
    queries : ndarray [q, d]
        Descriptors of the queries.
    database : ndarray [m, d]
        Descriptors of the database.
    true_rows : sequence of ndarray
        The database rows that show the place of each query (:func:`within`).
    among : sequence of int
        The numbers n of nearest images.

    Raises
    ------
    DivergedError
        Descriptors are not finite.
    """
    counted = [row for row, rows in enumerate(true_rows) if len(rows)]
    if not counted:
        return {}
    for name, descriptors in (("query", queries), ("database", database)):
        if not np.isfinite(descriptors).all():
            raise DivergedError(f"{name} descriptors are not finite: has training diverged?")
    nearest = nearest_rows(queries[counted], database, max(among))
    hits = np.stack([np.isin(rows, true_rows[query]) for query, rows in zip(counted, nearest, strict=True)])
    return {n: 100 * int(hits[:, :n].any(axis=1).sum()) / len(counted) for n in among}


@dataclass(frozen=True)
class Triplets:
    """t mined triplets.

    Attributes
    ----------
    queries : ndarray [t]
        Rows of the queries.
    positives : ndarray [t]
        Rows of the database.
    negatives : ndarray [t, k]
        Rows of the database.
    distinct : ndarray [t]
        The first ``distinct[i]`` negatives of triplet i are different, nearest first; the others repeat them in the
        same order.
    """

    queries: np.ndarray
    positives: np.ndarray
    negatives: np.ndarray
    distinct: np.ndarray

    @property
    def mask(self) -> np.ndarray:
        """Which negatives are not repetitions, ``[t, k]``."""
        mask: np.ndarray = np.arange(self.negatives.shape[1]) < self.distinct[:, None]
        return mask


@dataclass(frozen=True)
class Anywhere:
    """``size`` images of the whole database, or all if there are fewer, the same for every query."""

    size: int = 1000

    def draw(self, miner: "Miner", generator: np.random.Generator) -> np.ndarray:
        """Draw distinct rows of database images for one mining."""
        count = len(miner.database)
        return np.sort(generator.choice(count, min(self.size, count), replace=False))

    def open_to(self, miner: "Miner", queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Return which of the drawn images each query may use, bool ``[queries, drawn]``."""
        return np.ones((len(queries), len(drawn)), dtype=bool)


def drawn_of_each(sequences: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Draw up to ``count`` rows of each sequence, given the sequence of each row ``[n]``; ascending."""
    shuffled = generator.permutation(len(sequences))
    # Sort by sequence; the rows of each sequence stay shuffled.
    shuffled = shuffled[np.argsort(sequences[shuffled], kind="stable")]
    _, starts, sizes = np.unique(sequences[shuffled], return_index=True, return_counts=True)
    return np.sort(shuffled[np.arange(len(shuffled)) - np.repeat(starts, sizes) < count])


@dataclass(frozen=True)
class NearestSequences:
    """Up to ``images`` images of each of the ``sequences`` nearest to the query (FedVPR, Section 5.6: 333 with 3, or 20
    with 50).

    The distance of a sequence is that of its nearest image. The same images of a sequence are drawn for every query.
    """

    sequences: int
    images: int

    def draw(self, miner: "Miner", generator: np.random.Generator) -> np.ndarray:
        """As :meth:`Anywhere.draw`."""
        return drawn_of_each(miner.sequences, self.images, generator)

    def open_to(self, miner: "Miner", queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """As :meth:`Anywhere.open_to`."""
        order = np.argsort(miner.sequences, kind="stable")
        names, starts = np.unique(miner.sequences[order], return_index=True)
        distances = squared_distances(miner.queries[queries] - miner.origin, miner.database[order] - miner.origin)
        nearest = np.argsort(np.minimum.reduceat(distances, starts, axis=1), axis=1, kind="stable")
        open_sequences = np.zeros((len(queries), len(names)), dtype=bool)
        np.put_along_axis(open_sequences, nearest[:, : self.sequences], True, axis=1)
        allowed: np.ndarray = open_sequences[:, np.searchsorted(names, miner.sequences[drawn])]
        return allowed


#: The database images among which negatives are searched.
Pool = Anywhere | NearestSequences


class Miner:
    """The positions of the query and database images of a node.

    Parameters
    ----------
    queries : ndarray [q, 2]
        Positions of the queries in metres.
    database : ndarray [m, 2]
        Positions of the database images in metres.
    sequences : ndarray [m]
        The sequence number of each database image.
    near : float
        Database images within this distance in metres are positives of a query.
    far : float
        Database images beyond this distance in metres are negatives of a query.

    Attributes
    ----------
    usable : ndarray
        The rows of the queries with a positive and a negative. Their number is the node's number of examples.
    """

    def __init__(
        self, queries: np.ndarray, database: np.ndarray, sequences: np.ndarray, *, near: float = 10.0, far: float = 25.0
    ) -> None:
        self.queries = np.asarray(queries, dtype=np.float64).reshape(-1, 2)
        self.database = np.asarray(database, dtype=np.float64).reshape(-1, 2)
        self.sequences = np.asarray(sequences)
        self.near, self.far = near, far
        # Positions may be large, as in UTM: differences of their squares would lose precision.
        self.origin = self.database.mean(axis=0) if len(self.database) else np.zeros(2)
        self.usable = self._usable()

    def _usable(self) -> np.ndarray:
        if not len(self.queries) or not len(self.database):
            return np.zeros(0, dtype=np.int64)
        tree = cKDTree(self.database)
        positives = tree.query_ball_point(self.queries, self.near, return_length=True)
        around = tree.query_ball_point(self.queries, self.far, return_length=True)
        return np.flatnonzero((positives > 0) & (around < len(self.database)))

    def wanted(self, queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Return the rows of the database images whose descriptors :meth:`mine` reads: the pool, and all images near a
        query.
        """
        return np.unique(np.concatenate([drawn, *within(self.queries[queries], self.database, self.near)]))

    def mine(
        self,
        queries: np.ndarray,
        query_descriptors: np.ndarray,
        database_descriptors: np.ndarray,
        *,
        pool: Pool,
        drawn: np.ndarray,
        negatives: int = 5,
    ) -> Triplets:
        """Mine triplets.

        The positive is the image near the query whose descriptor is nearest. The negatives are those of ``drawn`` that
        the ``pool`` allows with the nearest descriptors. The first row wins ties. If there are fewer than ``negatives``
        negatives, they are repeated. Queries without a positive or without a negative are left out.

        Parameters
        ----------
        queries : ndarray [n]
            Rows of the queries.
        query_descriptors : ndarray [n, d]
            Their descriptors.
        database_descriptors : ndarray [m, d]
            Descriptors of the database, of which only the rows :meth:`wanted` are read.
        pool : Pool
            Decides which of the drawn images a query may use.
        drawn : ndarray
            The rows that ``pool`` drew.
        negatives : int
            The number of negatives per query.
        """
        kept: list[int] = []
        positives: list[int] = []
        rows: list[np.ndarray] = []
        distinct: list[int] = []
        block = max(1, _DISTANCES_AT_ONCE // max(1, len(self.database)))
        for start in range(0, len(queries), block):
            some = queries[start : start + block]
            described = query_descriptors[start : start + block]
            near = within(self.queries[some], self.database, self.near)
            ordered, counts = self._hardest(some, described, database_descriptors[drawn], pool, drawn, negatives)
            for query, descriptor, candidates, best, count in zip(some, described, near, ordered, counts, strict=True):
                if not len(candidates) or not count:
                    continue
                apart = ((database_descriptors[candidates] - descriptor) ** 2).sum(axis=1)
                kept.append(query)
                positives.append(candidates[apart.argmin()])
                rows.append(drawn[best[np.arange(negatives) % min(count, negatives)]])
                distinct.append(min(count, negatives))
        return Triplets(
            np.array(kept, dtype=np.int64),
            np.array(positives, dtype=np.int64),
            np.array(rows, dtype=np.int64).reshape(-1, negatives),
            np.array(distinct, dtype=np.int64),
        )

    def _hardest(
        self,
        queries: np.ndarray,
        described: np.ndarray,
        pool_descriptors: np.ndarray,
        pool: Pool,
        drawn: np.ndarray,
        negatives: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Columns of the pool for each query, nearest descriptors first, and how many of them are negatives."""
        allowed = pool.open_to(self, queries, drawn)
        for row, around in enumerate(within(self.queries[queries], self.database[drawn], self.far)):
            allowed[row, around] = False
        distances = np.where(allowed, squared_distances(described, pool_descriptors), np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, :negatives], allowed.sum(axis=1)
