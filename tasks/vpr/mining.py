"""Mining of triplets in the images of one node (FedVPR, Sections 3.1 and 3.2; benchmark of Berton et al., CVPR 2022).

Which images are near each other is known in advance (:class:`Miner`). Which of them look alike depends on the weights,
so triplets are mined repeatedly, each time for some of the queries, in a *pool* of drawn database images.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.spatial import cKDTree

from .recall import squared_distances, within

#: Maximum number of distances in memory.
_BLOCK = 2**22


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


class Pool(Protocol):
    """The database images among which negatives are searched."""

    def draw(self, miner: "Miner", generator: np.random.Generator) -> np.ndarray:
        """Draw distinct rows of database images for one mining."""

    def open_to(self, miner: "Miner", queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        """Return which of the drawn images each query may use, bool ``[queries, drawn]``."""


@dataclass(frozen=True)
class Anywhere:
    """``size`` images of the whole database, or all if there are fewer, the same for every query."""

    size: int = 1000

    def draw(self, miner: "Miner", generator: np.random.Generator) -> np.ndarray:
        count = len(miner.database)
        return np.sort(generator.choice(count, min(self.size, count), replace=False))

    def open_to(self, miner: "Miner", queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        return np.ones((len(queries), len(drawn)), dtype=bool)


@dataclass(frozen=True)
class NearestSequences:
    """Up to ``images`` images of each of the ``sequences`` nearest to the query (FedVPR, Section 5.6: 333 with 3, or 20
    with 50).

    The distance of a sequence is that of its nearest image. The same images of a sequence are drawn for every query.
    """

    sequences: int
    images: int

    def draw(self, miner: "Miner", generator: np.random.Generator) -> np.ndarray:
        shuffled = generator.permutation(len(miner.database))
        # Sort by sequence; the images of each sequence stay shuffled.
        shuffled = shuffled[np.argsort(miner.sequences[shuffled], kind="stable")]
        _, starts, sizes = np.unique(miner.sequences[shuffled], return_index=True, return_counts=True)
        rank = np.arange(len(shuffled)) - np.repeat(starts, sizes)
        return np.sort(shuffled[rank < self.images])

    def open_to(self, miner: "Miner", queries: np.ndarray, drawn: np.ndarray) -> np.ndarray:
        order = np.argsort(miner.sequences, kind="stable")
        names, starts = np.unique(miner.sequences[order], return_index=True)
        distances = squared_distances(miner.queries[queries] - miner.origin, miner.database[order] - miner.origin)
        nearest = np.argsort(np.minimum.reduceat(distances, starts, axis=1), axis=1, kind="stable")
        open_sequences = np.zeros((len(queries), len(names)), dtype=bool)
        np.put_along_axis(open_sequences, nearest[:, : self.sequences], True, axis=1)
        allowed: np.ndarray = open_sequences[:, np.searchsorted(names, miner.sequences[drawn])]
        return allowed


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

    Raises
    ------
    ValueError
        ``near`` exceeds ``far``, or the numbers of database images and sequence numbers differ.
    """

    def __init__(
        self,
        queries: np.ndarray,
        database: np.ndarray,
        sequences: np.ndarray,
        *,
        near: float = 10.0,
        far: float = 25.0,
    ) -> None:
        if not 0 <= near <= far:
            raise ValueError(f"near = {near}, far = {far}: must be 0 <= near <= far")
        self.queries = np.asarray(queries, dtype=np.float64).reshape(-1, 2)
        self.database = np.asarray(database, dtype=np.float64).reshape(-1, 2)
        self.sequences = np.asarray(sequences)
        if len(self.sequences) != len(self.database):
            raise ValueError(f"{len(self.sequences)} sequence numbers for {len(self.database)} database images")
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
        block = max(1, _BLOCK // max(1, len(self.database)))
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
