"""Paths as Room-to-Room samples them (Anderson et al., CVPR 2018, Sec. 4.2): shortest paths between two viewpoints."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from .house import House
from .sight import Bools, Floats

MOVES = (4, 6)
"""The least and most moves of a path."""
LEAST_DISTANCE = 5.0  # metres


@dataclass(frozen=True)
class SampledPath:
    """Places of viewpoints in their house, from start to goal; the length and the start's heading.

    ``distance`` is in metres, ``heading`` in radians, clockwise from +y, in [0, 2 pi).
    """

    spots: tuple[int, ...]
    distance: float
    heading: float


def sample_paths(house: House, count: int, rng: np.random.Generator) -> list[SampledPath]:
    """At most ``count`` different paths: as many as the house has.

    Start and goal are at least 5 m apart along the shortest path, which has 4 to 6 moves, and headings are uniform.
    """
    distances, before = shortest_paths(house.cameras, house.unobstructed)
    moves = _count_moves(before)
    allowed = (moves >= MOVES[0]) & (moves <= MOVES[1]) & (distances >= LEAST_DISTANCE)
    pairs = rng.permutation(np.argwhere(allowed))[:count]
    headings = rng.uniform(0, 2 * np.pi, size=len(pairs))
    return [
        SampledPath(tuple(_trace(before[start], goal)), float(distances[start, goal]), heading)
        for (start, goal), heading in zip(pairs.tolist(), headings.tolist(), strict=True)
    ]


def shortest_paths(places: Floats, moves: Bools) -> tuple[Floats, NDArray[np.int32]]:
    """Distances along ``moves`` ``[N, N]`` and, for each start and goal, the viewpoint before the goal.

    ``places`` is ``[N, 3]`` in metres. What cannot be reached is infinitely far; without a viewpoint before it, -9999.
    """
    lengths = np.linalg.norm(places[:, None] - places, axis=-1)
    distances, before = dijkstra(csr_matrix(np.where(moves, lengths, 0.0)), return_predecessors=True)
    return distances, before


def _count_moves(before: NDArray[np.int32]) -> NDArray[np.int64]:
    """The moves of each shortest path, 0 where there is none; more than the most are not counted."""
    here = np.broadcast_to(np.arange(len(before)), before.shape)
    moves = np.zeros(before.shape, np.int64)
    rows = np.arange(len(before))[:, None]
    for _ in range(MOVES[1] + 1):
        onwards = before[rows, here] >= 0
        moves += onwards
        here = np.where(onwards, before[rows, here], here)
    return moves


def _trace(before: NDArray[np.int32], goal: int) -> list[int]:
    path = [goal]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return path[::-1]
