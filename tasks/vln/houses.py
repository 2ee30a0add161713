"""Houses as tensors, and instructions and paths in them that a user gives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from fedapps.tasks.answers import finite_numbers
from torch import Tensor

from fedapps.base.errors import DataError, listed

from .connectivity import HEADINGS, STEP, VIEWS, Graph, directions, nearest_view, shortest_paths
from .instructions import entry_field, heading_of, stops_of


@dataclass(frozen=True, eq=False)
class Houses:
    """Some houses in one table, V viewpoints in all, with C candidates at most to a viewpoint.

    A *candidate* is a viewpoint that one can walk to. Candidate 0 is STOP; the neighbours follow from 1 on.

    Attributes
    ----------
    scans : tuple of str
        Names of the houses.
    names : tuple of str
        ``<scan>_<viewpoint>`` of each row.
    features : float32 tensor [V, 36, D]
        What is seen in each view.
    positions : float32 tensor [V, 3]
        Metres, z up.
    neighbour : int64 tensor [V, C]
        The row that a candidate leads to, -1 for STOP and where there is no such candidate.
    view : int64 tensor [V, C]
        The view, 0 to 35, that is nearest to the candidate.
    heading, elevation : float32 tensors [V, C]
        The exact direction of the candidate in radians.
    first, start : int64 tensors [V]
        Row of the house's first viewpoint, and where the viewpoint's distances begin.
    distance : float32 tensor
        Metres along edges, one house after another, row by row.
    next_candidate : int64 tensor
        As ``distance``: the candidate that leads towards the goal by the shortest path, 0 at the goal itself.
    """

    scans: tuple[str, ...]
    names: tuple[str, ...]
    features: Tensor
    positions: Tensor
    neighbour: Tensor
    view: Tensor
    heading: Tensor
    elevation: Tensor
    first: Tensor
    start: Tensor
    distance: Tensor
    next_candidate: Tensor

    def __deepcopy__(self, memo: object) -> "Houses":
        """Nothing is ever changed here, so that copies of a model share its houses."""
        return self

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of a viewpoint by its name ``<scan>_<viewpoint>``."""
        return {name: row for row, name in enumerate(self.names)}

    @cached_property
    def exists(self) -> Tensor:
        """Which candidates there are, bool ``[V, C]``; STOP always is."""
        exists = self.neighbour >= 0
        exists[:, 0] = True
        return exists

    @cached_property
    def candidate_angles(self) -> Tensor:
        """The angle features of the candidates from each column faced, float32 ``[V, 12, C, 4]``; zeros where nothing
        leads anywhere. Headings are relative to the middle of the column, elevations to the horizon (Tan et al.,
        2019)."""
        columns = torch.arange(HEADINGS, device=self.heading.device).view(1, -1, 1)
        heading = self.heading.unsqueeze(1) - columns * STEP
        elevation = self.elevation.unsqueeze(1).expand_as(heading)
        angles = torch.stack([heading.sin(), heading.cos(), elevation.sin(), elevation.cos()], dim=-1)
        return angles * self.leads.unsqueeze(1)

    @cached_property
    def leads(self) -> Tensor:
        """1 for candidates that lead to a viewpoint, otherwise 0, float32 ``[V, C, 1]``."""
        return (self.neighbour >= 0).float().unsqueeze(-1)

    def on(self, device: torch.device) -> "Houses":
        """The same houses on another device; those on the CPU keep what was moved."""
        if self.features.device == device:
            return self
        moved: dict[torch.device, Houses] = self.__dict__.setdefault("_moved", {})
        if device not in moved:
            parts: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
            tensors = {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
            moved[device] = Houses(**{**parts, **tensors})
        return moved[device]

    def distances(self, start: Tensor, goal: Tensor) -> Tensor:
        """Metres along edges between rows of the same house, element by element."""
        return self.distance[self._place(start, goal)]

    def towards(self, start: Tensor, goal: Tensor) -> Tensor:
        """The candidate to take at ``start`` for the shortest path to ``goal``; 0, STOP, at the goal."""
        return self.next_candidate[self._place(start, goal)]

    def candidate_to(self, start: Tensor, goal: Tensor) -> Tensor:
        """The candidate at ``start`` that leads to ``goal``; 0 where none does."""
        return (self.neighbour[start] == goal.unsqueeze(-1)).long().argmax(dim=-1)

    def _place(self, start: Tensor, goal: Tensor) -> Tensor:
        return self.start[start] + goal - self.first[start]


def assemble(graphs: Sequence[Graph], features: np.ndarray) -> Houses:
    """Put houses together.

    Parameters
    ----------
    graphs : sequence of Graph
        The houses, in the order of the rows.
    features : float32 ndarray [V, 36, D]
        One row for each viewpoint of each graph.

    Raises
    ------
    DataError
        The features have another number of rows or views.
    """
    sizes = [len(graph.viewpoints) for graph in graphs]
    if features.ndim != 3 or features.shape[:2] != (sum(sizes), VIEWS):
        raise DataError(f"features of shape {features.shape}; expected [{sum(sizes)}, {VIEWS}, width]")
    firsts = np.cumsum([0, *sizes])[:-1]
    widest = 1 + max(int(graph.navigable.sum(axis=1).max()) for graph in graphs)
    tables = [_candidates(graph, int(first), widest) for graph, first in zip(graphs, firsts, strict=True)]
    starts = np.cumsum([0, *(size * size for size in sizes)])[:-1]
    paths = [shortest_paths(graph) for graph in graphs]
    following = [
        _candidate_towards(of_house.following, table[0], int(first))
        for of_house, table, first in zip(paths, tables, firsts, strict=True)
    ]
    neighbour, view, heading, elevation = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    return Houses(
        tuple(graph.scan for graph in graphs),
        tuple(f"{graph.scan}_{name}" for graph in graphs for name in graph.viewpoints),
        torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32)),
        torch.from_numpy(np.concatenate([graph.positions for graph in graphs]).astype(np.float32)),
        torch.from_numpy(neighbour),
        torch.from_numpy(view),
        torch.from_numpy(heading.astype(np.float32)),
        torch.from_numpy(elevation.astype(np.float32)),
        torch.from_numpy(np.repeat(firsts, sizes)),
        torch.from_numpy(
            np.concatenate([start + np.arange(size) * size for start, size in zip(starts, sizes, strict=True)])
        ),
        torch.from_numpy(np.concatenate([of_house.distance.ravel() for of_house in paths]).astype(np.float32)),
        torch.from_numpy(np.concatenate([candidate.ravel() for candidate in following])),
    )


def _candidates(graph: Graph, first: int, widest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Row, view, heading and elevation of the candidates of each viewpoint, each ``[N, widest]``."""
    size = len(graph.viewpoints)
    neighbour = np.full((size, widest), -1, dtype=np.int64)
    view = np.zeros((size, widest), dtype=np.int64)
    heading, elevation = np.zeros((size, widest)), np.zeros((size, widest))
    for viewpoint in range(size):
        neighbours = np.flatnonzero(graph.navigable[viewpoint])
        columns = slice(1, 1 + len(neighbours))
        heading[viewpoint, columns], elevation[viewpoint, columns] = directions(
            graph.positions[neighbours] - graph.positions[viewpoint]
        )
        view[viewpoint, columns] = nearest_view(heading[viewpoint, columns], elevation[viewpoint, columns])
        neighbour[viewpoint, columns] = first + neighbours
    return neighbour, view, heading, elevation


def _candidate_towards(following: np.ndarray, neighbour: np.ndarray, first: int) -> np.ndarray:
    """The candidate, ``[N, N]``, that leads to the viewpoint which ``following`` names; 0 where it names none."""
    size = len(following)
    number = np.zeros((size, size), dtype=np.int64)  # of the candidate at row i that leads to column j
    rows, columns = np.nonzero(neighbour >= 0)
    number[rows, neighbour[rows, columns] - first] = columns
    return np.where(following < 0, 0, np.take_along_axis(number, np.maximum(following, 0), axis=1))


SHOWN = 5  # houses that a message names


@dataclass(frozen=True)
class HousePath:
    """A path through the house ``scan``.

    Attributes
    ----------
    scan : str
    viewpoints : tuple of str
        From the start on; a viewpoint occurs once for each visit.
    heading : float
        The direction in radians that one faces at the start, clockwise from +y.
    positions : tuple of (float, float, float)
        Of the viewpoints, in metres, z up.
    stopped : bool
        Whether the agent chose to stop, and did not run out of ``vln.max-actions``.
    """

    scan: str
    viewpoints: tuple[str, ...]
    heading: float = 0.0
    positions: tuple[tuple[float, float, float], ...] = ()
    stopped: bool = True


@dataclass(frozen=True)
class Start:
    """An instruction and where it begins: a viewpoint of the house ``scan``, and a heading in radians clockwise from
    +y.
    """

    instruction: str
    scan: str
    viewpoint: str
    heading: float = 0.0


def check_stop(houses: Houses, scan: str, viewpoint: str, heading: float) -> None:
    """Raise :class:`DataError` unless there is such a viewpoint in ``houses``, and the heading is one finite number."""
    if not isinstance(scan, str) or scan not in houses.scans:
        raise DataError(f"house {scan!r}: the model is in {listed(houses.scans, SHOWN)}; enter(folder) the house")
    if f"{scan}_{viewpoint}" not in houses.rows:
        raise DataError(f"house {scan}: no viewpoint {viewpoint!r} in its graph")
    what = f"house {scan}, viewpoint {viewpoint}: heading"
    if (shape := finite_numbers(heading, what).shape) != ():
        raise DataError(f"{what} of shape {list(shape)}; expected one number, in radians")


def check_path(houses: Houses, path: HousePath) -> None:
    """Raise :class:`DataError` unless a path of at least two viewpoints can be walked in ``houses``."""
    if len(path.viewpoints) < 2:
        raise DataError(f"house {path.scan}: a path of {len(path.viewpoints)} viewpoints; expected at least 2")
    for viewpoint in path.viewpoints:
        check_stop(houses, path.scan, viewpoint, path.heading)
    rows = [houses.rows[f"{path.scan}_{viewpoint}"] for viewpoint in path.viewpoints]
    for index in range(len(rows) - 1):
        if not bool((houses.neighbour[rows[index]] == rows[index + 1]).any()):
            start, stop = path.viewpoints[index : index + 2]
            raise DataError(f"house {path.scan}: the graph has no edge from {start} to {stop}")


def walked(houses: Houses, start: Start, rows: Tensor, max_actions: int) -> HousePath:
    """The path through the ``rows`` of ``houses`` that an agent walked in at most ``max_actions``."""
    names = tuple(houses.names[row].removeprefix(f"{start.scan}_") for row in rows.tolist())
    positions = tuple((x, y, z) for x, y, z in houses.positions[rows].tolist())
    return HousePath(start.scan, names, start.heading, positions, stopped=len(rows) <= max_actions)


def _heading(location: str, entry: Mapping[str, Any]) -> float:
    return heading_of(location, entry) if "heading" in entry else 0.0


def path_of(location: str, entry: Mapping[str, Any]) -> HousePath:
    """The path of an object: ``scan``, ``path`` and perhaps ``heading``. Raise :class:`DataError` if it has none."""
    scan = entry_field(location, entry, "scan", str)
    return HousePath(scan, stops_of(location, entry), _heading(location, entry))


def starts_of(location: str, entry: Mapping[str, Any]) -> Iterator[Start]:
    """The instructions of an object: ``instruction`` or a list ``instructions``, ``scan``, ``viewpoint`` or the first
    one of ``path``, and perhaps ``heading``. Raise :class:`DataError` if it has none.
    """
    scan, heading = entry_field(location, entry, "scan", str), _heading(location, entry)
    has_viewpoint = "viewpoint" in entry
    viewpoint = entry_field(location, entry, "viewpoint", str) if has_viewpoint else stops_of(location, entry)[0]
    texts = entry.get("instructions", [entry.get("instruction")])
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{location}: no instruction; expected a text instruction, or a list instructions")
    for text in texts:
        yield Start(text, scan, viewpoint, heading)
