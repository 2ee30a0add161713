"""Walks through houses from above: what was described and where the agent of each method went.

Floors are drawn beside each other, or the upper ones above, and only as far as one of the paths leads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from fedapps.base.report.figures import drawing, scale_bar
from fedapps.base.report.metrics import INK, PlotStyle, plot_styles
from fedapps.base.report.sections import Array, Arrays, ReportedRun, section_markup

_MOST_NODES = 4
_MOST_METHODS = 4
_MOST_PATHS = 2
_WIDE = 7.6  # inches
_FLOOR = 2.0  # metres of height that a floor spans at most
_MARGIN, _GAP = 2.5, 2.0  # metres around the paths of a floor, and between floors
_EDGE, _VIEWPOINT, _REFERENCE = "#dde1e7", "#9ca3af", "#b8c0cc"
_PATH = re.compile(r"((?:val_seen|val_unseen)\.\d+)\.instruction")

ORDER = 105

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class House:
    """The graph of a house.

    Attributes
    ----------
    viewpoints : ndarray of shape [V, 3]
        Positions in metres, z up.
    edges : ndarray of shape [E, 2]
        The rows of the viewpoints that each edge joins.
    """

    viewpoints: Array
    edges: Rows

    @property
    def floors(self) -> Rows:
        """[V], the floor of each viewpoint, counted from 0 at the bottom. A floor spans up to 2 m of height."""
        floors = np.zeros(len(self.viewpoints), dtype=np.int64)
        floor, lowest = 0, float(self.viewpoints[:, 2].min(initial=np.inf))
        for row in self.viewpoints[:, 2].argsort(kind="stable"):
            if self.viewpoints[row, 2] > lowest + _FLOOR:
                floor, lowest = floor + 1, float(self.viewpoints[row, 2])
            floors[row] = floor
        return floors


@dataclass(frozen=True)
class Walk:
    """A walk of an agent.

    Attributes
    ----------
    instruction : str
        What the agent read.
    reference, walked : ndarrays of shape [R] and [W]
        The rows of the viewpoints of the described path, and of those that the agent visited.
    error : float
        Distance from the end to the goal along the edges, in metres.
    success : bool
        Whether the walk counts as a success.
    """

    instruction: str
    reference: Rows
    walked: Rows
    error: float
    success: bool


#: By path, such as ``val_unseen.0``, and method.
Walks = Mapping[str, Mapping[str, Walk]]


def section(run: ReportedRun) -> Markup | None:
    """Two paths of each of up to four houses, under up to four methods; None for tasks without houses."""
    houses: dict[str, tuple[House, Walks]] = {}
    for node in sorted({node for _, node in run.traces}):
        if of_node := _walks(run, node):
            houses[node] = of_node
    if not houses:
        return None
    # Unseen houses first.
    nodes = sorted(houses, key=lambda node: not next(iter(houses[node][1])).startswith("val_unseen"))[:_MOST_NODES]
    paths = {node: [_path(run, houses[node][0], of) for of in _chosen(houses[node][1])] for node in nodes}
    return section_markup(Path(__file__).parent, "houses", nodes=paths)


def _walks(run: ReportedRun, node: str) -> tuple[House, Walks] | None:
    """The house of a node and its walks."""
    house: House | None = None
    by_path: dict[str, dict[str, Walk]] = {}
    for method in run.methods[:_MOST_METHODS]:
        if (method, node) not in run.traces:
            continue
        arrays = Arrays(run.traces[method, node])
        house = read_house(arrays) or house
        for path, walk in read_walks(arrays, house).items() if house else ():
            by_path.setdefault(path, {})[method] = walk
    return (house, by_path) if house and by_path else None


def _chosen(walks: Walks) -> list[Mapping[str, Walk]]:
    """The paths in which as many methods as possible succeed while as many others fail."""

    def disagreement(path: str) -> int:
        successes = [walk.success for walk in walks[path].values()]
        return min(successes.count(True), successes.count(False))

    return [walks[path] for path in sorted(walks, key=disagreement, reverse=True)[:_MOST_PATHS]]


def _path(run: ReportedRun, house: House, walks: Mapping[str, Walk]) -> tuple[str, Markup, bool]:
    """The instruction, the figure with a drawing for each method, and whether it is wide."""
    plan = floor_plan(house, list(walks.values()))
    columns = len(walks) if plan.width < 0.8 * plan.height else min(len(walks), 2)
    rows = -(-len(walks) // columns)
    width = _WIDE if columns > 1 else _WIDE / 2
    height = min(4.0, max(1.2, width / columns * plan.height / plan.width))
    instruction = next(iter(walks.values())).instruction
    outcomes = "; ".join(f"{method} {_outcome(walk)}" for method, walk in walks.items())
    alt = f"Maps of the walks for the instruction {instruction!r}: {outcomes}"
    with drawing(alt, rows=rows, columns=columns, width=width, height=rows * (height + 0.45)) as figure:
        for axes in figure.axes[len(walks) :]:
            axes.set_axis_off()
        for axes, (method, walk) in zip(figure.axes, walks.items(), strict=False):
            draw_walk(axes, house, plan, walk, plot_styles(run.methods)[method])
            axes.set_title(f"{fill(method, 22)}: {_outcome(walk)}", fontsize=8.5)
    return instruction, figure.markup, columns > 1


def _outcome(walk: Walk) -> str:
    return f"{'✓' if walk.success else '✗'} {walk.error:.1f} m"


def read_house(arrays: Arrays) -> House | None:
    """Read the house; None if there is none.

    Raises
    ------
    ReportError
        If an array is missing, or has a wrong shape or range.
    """
    if "viewpoints" not in arrays:
        return None
    viewpoints = arrays.get("viewpoints", None, 3)
    if not np.isfinite(viewpoints).all():
        raise arrays.fail("viewpoints", "must be finite")
    return House(viewpoints, arrays.indices("edges", len(viewpoints), None, 2))


def read_walks(arrays: Arrays, house: House) -> dict[str, Walk]:
    """Read the walks by their path, such as ``val_unseen.0``.

    Raises
    ------
    ReportError
        As :func:`read_house`, and if a walk or its reference has no viewpoint.
    """
    return {path: _walk(arrays, path, house) for path in recorded_paths(arrays) if f"{path}.walked" in arrays}


def recorded_paths(arrays: Arrays) -> list[str]:
    """The paths of unseen houses first, then by number."""
    paths = [match[1] for key in arrays if (match := _PATH.fullmatch(key))]
    return sorted(paths, key=lambda path: (not path.startswith("val_unseen"), int(path.rpartition(".")[2])))


def _walk(arrays: Arrays, path: str, house: House) -> Walk:
    rows = {}
    for name in ("reference", "walked"):
        rows[name] = arrays.indices(f"{path}.{name}", len(house.viewpoints), None)
        if not rows[name].size:
            raise arrays.fail(f"{path}.{name}", "must name a viewpoint")
    return Walk(
        instruction=arrays.text(f"{path}.instruction"),
        reference=rows["reference"],
        walked=rows["walked"],
        error=float(arrays.get(f"{path}.error")),
        success=bool(arrays.get(f"{path}.success")),
    )


@dataclass(frozen=True)
class FloorPlan:
    """Where the viewpoints of a house are drawn.

    Attributes
    ----------
    positions : ndarray of shape [V, 2]
        Positions on the drawing in metres.
    shown : ndarray of shape [V]
        Whether a viewpoint is drawn.
    floors : ndarray of shape [V]
        The floor of each viewpoint.
    names : tuple of (x, y, name)
        The names of the floors and where they stand; empty if only one floor is drawn.
    width, height : float
        Size of the drawing in metres.
    """

    positions: Array
    shown: npt.NDArray[np.bool_]
    floors: Rows
    names: tuple[tuple[float, float, str], ...]
    width: float
    height: float


def floor_plan(house: House, walks: Sequence[Walk]) -> FloorPlan:
    """The plan for some walks, the same for all methods."""
    floors, ground = house.floors, house.viewpoints[:, :2]
    touched = np.unique(np.concatenate([rows for walk in walks for rows in (walk.reference, walk.walked)]))
    numbers = np.unique(floors[touched])
    lows, highs = [], []
    for floor in numbers:
        points = ground[touched[floors[touched] == floor]]
        lows.append(points.min(axis=0) - _MARGIN)
        highs.append(points.max(axis=0) + _MARGIN)
    sizes = np.array(highs) - np.array(lows)
    gaps = _GAP * (len(numbers) - 1)
    beside = (sizes[:, 0].sum() + gaps, sizes[:, 1].max())
    above = (sizes[:, 0].max(), sizes[:, 1].sum() + gaps)
    way, size = (0, beside) if max(beside) < max(above) else (1, above)
    positions, shown, names = np.zeros_like(ground), np.zeros(len(ground), dtype=bool), []
    corner = np.zeros(2)
    for floor, low, high in zip(numbers, lows, highs, strict=True):
        inside = (floors == floor) & (ground >= low).all(axis=1) & (ground <= high).all(axis=1)
        positions[inside] = ground[inside] - low + corner
        shown |= inside
        names.append((float(corner[0]), float(corner[1] + high[1] - low[1]), f"floor {floor + 1}"))
        corner[way] += high[way] - low[way] + _GAP
    return FloorPlan(positions, shown, floors, tuple(names) if len(numbers) > 1 else (), float(size[0]), float(size[1]))


def draw_walk(axes: Axes, house: House, plan: FloorPlan, walk: Walk, style: PlotStyle) -> None:
    """Draw the house, the described path as a broad band, and the walk as a line from a circle to ✓ or ✗."""
    positions, floors = plan.positions, plan.floors
    drawn = [edge for edge in house.edges if plan.shown[edge].all() and floors[edge[0]] == floors[edge[1]]]
    axes.add_collection(LineCollection([positions[edge] for edge in drawn], colors=_EDGE, linewidths=0.7, zorder=1))
    axes.plot(*positions[plan.shown].T, ".", color=_VIEWPOINT, markersize=2.5, zorder=1)
    _draw_path(axes, plan, walk.reference, _REFERENCE, 5.5)
    _draw_path(axes, plan, walk.walked, style.colour, 1.8)
    axes.plot(*positions[walk.reference[-1]], "D", color="white", markeredgecolor=INK, markersize=7, zorder=4)
    axes.plot(*positions[walk.walked[0]], "o", color=style.colour, markeredgecolor="white", markersize=6.5, zorder=5)
    end = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": style.colour, "linewidth": 1.2}
    axes.annotate(
        "✓" if walk.success else "✗",
        tuple(positions[walk.walked[-1]]),
        (7, 7),
        textcoords="offset points",
        fontsize=8,
        fontweight="bold",
        color=INK,
        ha="center",
        va="center",
        bbox=end,
        zorder=6,
    )
    for x, y, name in plan.names:
        axes.text(x, y, name, fontsize=7, va="bottom")
    scale_bar(axes, 0, -1.2, plan.width)
    axes.set_xlim(-0.3, plan.width + 0.3)
    axes.set_ylim(-1.8, plan.height + 0.8)
    axes.set_aspect("equal")
    axes.set_axis_off()


def _draw_path(axes: Axes, plan: FloorPlan, rows: Rows, colour: str, width: float) -> None:
    """Lines along a path, dotted between floors."""
    for one, other in pairwise(rows):
        stairs = plan.floors[one] != plan.floors[other]
        steps = plan.positions[[one, other]].T
        axes.plot(*steps, ":" if stairs else "-", color=colour, linewidth=width, solid_capstyle="round", zorder=2)
