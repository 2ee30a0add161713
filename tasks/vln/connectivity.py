"""Navigation graphs of houses, shortest paths in them, and directions (Anderson et al., CVPR 2018, Section 3).

In Matterport3D's connectivity files, a house has a file ``<scan>_connectivity.json``, alone in a folder or in a tar
archive: an array of viewpoints, each with its ``image_id``, its ``pose`` (4 x 4, row by row, in metres, z up), whether
it is ``included``, and which others are ``visible`` and ``unobstructed`` from it.

Headings are in radians clockwise from +y, elevations in radians above the horizon. A panorama has 36 views: view q
looks towards heading 30 (q % 12) degrees and elevation 30 (q // 12 - 1) degrees.
"""

import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import scipy

from fedapps.base.errors import DataError
from fedapps.base.text_files import UNREADABLE, found_in, from_json, is_made

HEADINGS, ELEVATIONS = 12, 3
VIEWS = HEADINGS * ELEVATIONS
STEP = np.pi / 6  # radians between neighbouring views
VIEW_HEADINGS = (np.arange(VIEWS) % HEADINGS) * STEP
VIEW_ELEVATIONS = (np.arange(VIEWS) // HEADINGS - 1) * STEP


def directions(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heading in [0, 2π) and elevation in [-π/2, π/2] of vectors ``[..., 3]`` in metres, z up."""
    heading = np.arctan2(offsets[..., 0], offsets[..., 1]) % (2 * np.pi)
    elevation = np.arctan2(offsets[..., 2], np.hypot(offsets[..., 0], offsets[..., 1]))
    return heading, elevation


def unit_vectors(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """The vectors ``[..., 3]`` of length 1 in some directions: the inverse of :func:`directions`."""
    flat = np.cos(elevation)
    return np.stack([np.sin(heading) * flat, np.cos(heading) * flat, np.sin(elevation)], axis=-1)


def nearest_view(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """The view, 0 to 35, whose centre is nearest to a direction in heading and in elevation."""
    column = nearest_heading(heading)
    row = np.clip(np.rint(elevation / STEP), -1, 1).astype(np.int64) + 1
    view: np.ndarray = row * HEADINGS + column
    return view


def nearest_heading(heading: np.ndarray) -> np.ndarray:
    """The column of views, 0 to 11, that is nearest to a heading."""
    return np.rint(np.asarray(heading) / STEP).astype(np.int64) % HEADINGS


def turned(angle: np.ndarray) -> np.ndarray:
    """An angle in radians as the same one in [-π, π)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def angle_features(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """Sine and cosine of heading and of elevation, ``[..., 4]`` (Tan et al., NAACL 2019, Section 3.1)."""
    return np.stack([np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)], axis=-1)


SUFFIX = "_connectivity.json"
#: Metres between viewpoints that one can walk between, on average of a house. Beyond, positions have another unit.
_STEP = (0.05, 50.0)


@dataclass(frozen=True, eq=False)
class Graph:
    """The included viewpoints of the house ``scan``.

    Attributes
    ----------
    viewpoints : tuple of str
        N names.
    positions : ndarray [N, 3]
        Metres, z up.
    navigable : bool ndarray [N, N]
        Between which viewpoints one can walk; symmetric, without loops.
    visible : bool ndarray [N, N]
        Which viewpoints (columns) are seen from each (rows), those that one can walk to included.
    """

    scan: str
    viewpoints: tuple[str, ...]
    positions: np.ndarray
    navigable: np.ndarray
    visible: np.ndarray

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """The row of each viewpoint."""
        return {name: row for row, name in enumerate(self.viewpoints)}


def graph_files(folder: Path) -> list[Path]:
    """The files and archives of graphs in ``folder`` and the folders below it."""
    return [path for path in found_in(folder, f"**/*{SUFFIX}", "**/*connectivity*.tar*") if path.is_file()]


def read_graphs(folder: Path) -> Mapping[str, Graph]:
    """The graphs of all houses in ``folder`` and the folders below it, by the name of the house.

    Raises
    ------
    DataError
        There is none, a house has two, or a file is malformed.
    """
    graphs: dict[str, Graph] = {}
    for path in graph_files(folder):
        if path.name.endswith(SUFFIX):
            _add(graphs, _graph(path.name.removesuffix(SUFFIX), path.read_bytes(), str(path)), str(path))
            continue
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    wanted = member.isreg() and member.name.endswith(SUFFIX) and not is_made(PurePosixPath(member.name))
                    if wanted and (file := archive.extractfile(member)) is not None:
                        location = f"{path}, {member.name}"
                        scan = Path(member.name).name.removesuffix(SUFFIX)
                        _add(graphs, _graph(scan, file.read(), location), location)
        except (*UNREADABLE, tarfile.TarError) as error:
            raise DataError(f"{path}: cannot be read: {error}; expected a tar archive of *{SUFFIX}") from error
    if not graphs:
        raise DataError(
            f"{folder}: no graph of a house; expected files <scan>{SUFFIX}, or an archive *connectivity*.tar"
        )
    return dict(sorted(graphs.items()))


def _add(graphs: dict[str, Graph], graph: Graph, location: str) -> None:
    if graph.scan in graphs:
        raise DataError(f"{location}: house {graph.scan} has another graph beside this one; keep one of them")
    graphs[graph.scan] = graph


def _graph(scan: str, content: bytes, location: str) -> Graph:
    try:
        entries = from_json(content)
        kept = _truths([entry["included"] for entry in entries], len(entries))
        poses = np.array([entry["pose"] for entry in entries], dtype=np.float64).reshape(len(entries), 16)
        unobstructed, visible = (
            _truths([entry[name] for entry in entries], len(entries), len(entries))
            for name in ("unobstructed", "visible")
        )
        names = tuple(entry["image_id"] for entry, used in zip(entries, kept, strict=True) if used)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{location}: {type(error).__name__}: {error}; expected an array of viewpoints with image_id, pose of 16 "
            "numbers, included, and visible and unobstructed with one value for each viewpoint"
        ) from error
    named = all(isinstance(name, str) for name in names)
    if not names or not named or len(set(names)) < len(names) or not np.isfinite(poses).all():
        raise DataError(f"{location}: expected included viewpoints with different names and finite poses")
    inside = np.ix_(kept, kept)
    walkable = unobstructed[inside] | unobstructed[inside].T
    np.fill_diagonal(walkable, False)
    seen = visible[inside] | walkable
    np.fill_diagonal(seen, False)
    positions = poses[kept][:, [3, 7, 11]]
    starts, ends = np.nonzero(walkable)
    step = float(np.median(np.linalg.norm(positions[starts] - positions[ends], axis=1))) if len(starts) else 1.0
    if not _STEP[0] <= step <= _STEP[1]:
        raise DataError(
            f"{location}: viewpoints that one can walk between are {step:g} apart (median); expected poses in metres, "
            f"{_STEP[0]:g} to {_STEP[1]:g} apart"
        )
    return Graph(scan, names, positions, walkable, seen)


def _truths(values: list[Any], *shape: int) -> np.ndarray:
    """Nested lists of true and false, or 1 and 0, as a bool array of a shape."""
    array = np.array(values)
    if array.size and not (array.dtype.kind == "b" or (array.dtype.kind in "iu" and np.isin(array, (0, 1)).all())):
        raise ValueError("included, visible and unobstructed are not all true or false")
    truths: np.ndarray = array.astype(bool).reshape(shape)
    return truths


#: The paths of R2R are shortest paths with 4 to 6 edges and at least 5 metres (Anderson et al., CVPR 2018, Section 4).
EDGES, SHORTEST = (4, 6), 5.0


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
    rows, columns = np.nonzero(graph.navigable)
    lengths = np.linalg.norm(graph.positions[rows] - graph.positions[columns], axis=1)
    size = len(graph.viewpoints)
    edges = scipy.sparse.csr_matrix((np.maximum(lengths, 1e-9), (rows, columns)), shape=(size, size))
    distance, before = scipy.sparse.csgraph.shortest_path(edges, method="D", directed=False, return_predecessors=True)
    # The path from i to j is that from j to i backwards: what comes before i from j comes after i towards j.
    return ShortestPaths(distance, np.where(before < 0, -1, before).T)
