"""Social scenes: the score predicted for the robot at every position of a recorded scene, one panel per method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor
from pathlib import Path
from textwrap import fill

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable

from fedapps.base.report.figures import panels_per_row, small_multiples
from fedapps.base.report.metrics import INK
from fedapps.base.report.sections import Array, Arrays, ReportedRun, section_markup

_MOST_NODES = 4
_PERSON = "#D55E00"
_GAZE = 0.9

ORDER = 110


@dataclass(frozen=True)
class SocialScene:
    """One recorded scene. Positions (x, y) are in metres, with the recorded robot at (0, 0).

    Attributes
    ----------
    room : ndarray of shape [K, 2]
        Corners of the room, a closed polygon.
    humans, objects : ndarray of shape [n, 3]
        x, y and orientation o in half turns. Humans look in the direction (sin(pi o), -cos(pi o)).
    links : ndarray of shape [L, 2]
        Interactions, as indices into the humans followed by the objects.
    x, y : ndarray of shape [gx] and [gy]
        Grid of robot positions.
    score : ndarray of shape [gy, gx]
        Predicted score with the robot at each position, from 0 (disturbs) to 1 (does not disturb).
    inside : ndarray of shape [gy, gx]
        Whether the position is inside the room.
    truth : float
        Score that a person gave to the recorded position of the robot.
    """

    room: Array
    humans: Array
    objects: Array
    links: npt.NDArray[np.int64]
    x: Array
    y: Array
    score: Array
    inside: npt.NDArray[np.bool_]
    truth: float

    @property
    def shown(self) -> Array:
        """[gy, gx], the scores inside the room; NaN outside."""
        return np.where(self.inside, self.score, np.nan)

    @property
    def at_robot(self) -> float:
        """The score predicted at the grid position nearest to the recorded robot."""
        return float(self.score[np.abs(self.y).argmin(), np.abs(self.x).argmin()])


def section(run: ReportedRun) -> Markup | None:
    """One scene of each of up to four nodes; None for tasks without scenes."""
    by_node: dict[str, dict[str, SocialScene]] = {}
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        scene = read_scene(path) if method in run.methods else None
        if scene and np.isfinite(scene.shown).any():
            by_node.setdefault(node, {})[method] = scene
    if not by_node:
        return None
    shown = {
        node: {m: by_node[node][m] for m in run.methods if m in by_node[node]} for node in list(by_node)[:_MOST_NODES]
    }
    nodes = [(node, _truth(of), _figure(node, of), panels_per_row(len(of)) > 2) for node, of in shown.items()]
    return section_markup(Path(__file__).parent, "scenes", nodes=nodes)


def _figure(node: str, scenes: Mapping[str, SocialScene]) -> Markup:
    limits = _limits(scenes)
    scores = ", ".join(f"{method} {scene.at_robot:.2f}" for method, scene in scenes.items())
    alt = f"Maps of the score predicted for each position in a scene of {node}; at the robot's position: {scores}"
    with small_multiples(f"{alt}, rated {_truth(scenes):.2f}", len(scenes), height=2.2) as figure:
        for axes, (method, scene) in zip(figure.axes, scenes.items(), strict=True):
            colours = draw_scene(axes, scene, limits)
            axes.set_title(f"{fill(method, 17)}: {scene.at_robot:.2f}", fontsize=8.5)
        figure.figure.colorbar(colours, ax=figure.axes, label="predicted score", shrink=0.8, pad=0.02)
        figure.figure.supxlabel("x [m]", fontsize=9)
        figure.figure.supylabel("y [m]", fontsize=9)
    return figure.markup


def _truth(scenes: Mapping[str, SocialScene]) -> float:
    """The rating of a scene, the same for every method."""
    return next(iter(scenes.values())).truth


def _limits(scenes: Mapping[str, SocialScene]) -> tuple[float, float]:
    """The range of all drawn predictions, rounded outwards to tenths."""
    shown = np.concatenate([scene.shown.ravel() for scene in scenes.values()])
    return floor(10 * np.nanmin(shown)) / 10, ceil(10 * np.nanmax(shown)) / 10


def read_scene(path: Path) -> SocialScene | None:
    """Read the scene in a ``traces.safetensors``; None if the file holds other traces.

    Raises
    ------
    ReportError
        If the file is not a safetensors file, or an array is missing or has a wrong shape or range.
    """
    arrays = Arrays(path)
    if "scene.score" not in arrays:
        return None
    x, y = arrays.get("scene.x", None), arrays.get("scene.y", None)
    humans, objects = arrays.get("scene.humans", None, 3), arrays.get("scene.objects", None, 3)
    links, bodies = arrays.get("scene.links", None, 2), len(humans) + len(objects)
    if links.size and not (links.min() >= 0 and links.max() < bodies):
        raise arrays.fail("scene.links", f"must hold indices from 0 to {bodies - 1} of humans and objects")
    return SocialScene(
        room=arrays.get("scene.room", None, 2),
        humans=humans,
        objects=objects,
        links=links.astype(np.int64),
        x=x,
        y=y,
        score=arrays.get("scene.score", len(y), len(x)),
        inside=arrays.get("scene.inside", len(y), len(x)).astype(bool),
        truth=float(arrays.get("scene.truth")),
    )


def draw_scene(axes: Axes, scene: SocialScene, limits: tuple[float, float]) -> ScalarMappable:
    """Draw a scene. ``limits`` is the range of the colour scale, the same for all scenes that are compared."""
    low, high = limits
    grid = (scene.x, scene.y, scene.shown)
    drawn = axes.pcolormesh(*grid, shading="nearest", cmap="cividis", vmin=low, vmax=high, rasterized=True)
    corners = np.concatenate([scene.room, scene.room[:1]])
    axes.plot(*corners.T, color=INK, linewidth=1.4)
    bodies = np.concatenate([scene.humans, scene.objects])[:, :2]
    for pair in scene.links:
        axes.plot(*bodies[pair].T, color="white", linewidth=1.2, dashes=(3, 2), zorder=2)
    things, people = scene.objects[:, :2], scene.humans[:, :2]
    axes.plot(*things.T, "s", color="#9ca3af", markeredgecolor=INK, markersize=5.5, zorder=3)
    for start, way in zip(people, gaze(scene.humans), strict=True):
        arrow = {"arrowstyle": "-|>", "color": _PERSON, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=tuple(start + _GAZE * way), xytext=tuple(start), arrowprops=arrow, zorder=3)
    axes.plot(*people.T, "o", color=_PERSON, markeredgecolor="white", markersize=7, zorder=4)
    axes.plot(0, 0, "X", color=INK, markeredgecolor="white", markersize=8, zorder=5)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.tick_params(labelsize=7.5)
    return drawn


def gaze(people: Array) -> Array:
    """[N, 2], unit vectors of the directions in which people [N, 3] look."""
    angle = np.pi * people[:, 2]
    return np.stack([np.sin(angle), -np.cos(angle)], axis=1)
