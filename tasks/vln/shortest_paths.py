"""Shortest paths between the viewpoints of a house, by SciPy's Dijkstra."""

from dataclasses import dataclass

import numpy as np

from .connectivity import Graph


@dataclass(frozen=True, eq=False)
class ShortestPaths:
    """``distance [N, N]`` in metres along edges, infinite where there is no path; ``following [N, N]``, the viewpoint
    that comes after row i on the shortest path to column j, -1 where there is none or i = j."""

    distance: np.ndarray
    following: np.ndarray

    def path(self, start: int, goal: int) -> list[int]:
        """The viewpoints from ``start`` to ``goal``, both included. There must be a path."""
        path = [start]
        while path[-1] != goal:
            path.append(int(self.following[path[-1], goal]))
        return path


def shortest_paths(graph: Graph) -> ShortestPaths:
    """Shortest paths of a graph whose edges are as long as the straight line between their viewpoints."""
    from scipy.sparse import csr_matrix  # slow to import, and most profiles need no shortest paths
    from scipy.sparse.csgraph import shortest_path

    rows, columns = np.nonzero(graph.navigable)
    lengths = np.linalg.norm(graph.positions[rows] - graph.positions[columns], axis=1)
    size = len(graph.viewpoints)
    edges = csr_matrix((np.maximum(lengths, 1e-9), (rows, columns)), shape=(size, size))
    distance, before = shortest_path(edges, method="D", directed=False, return_predecessors=True)
    # The path from i to j is that from j to i backwards: what comes before i from j comes after i towards j.
    return ShortestPaths(distance, np.where(before < 0, -1, before).T)
