"""What the robot has learned to mind: the score of every place in a recorded scene, a panel for each method."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from textwrap import fill

import numpy as np

from fedapps.report.figures import across, multiples
from fedapps.report.markup import details, panels
from fedapps.report.markup import section as block
from fedapps.report.run_data import RunData
from fedapps.report.scene_drawing import Scene, draw_scene, read_scene

_MOST_NODES = 4

ORDER = 110


def section(run: RunData) -> str | None:
    """One scene of each of up to four nodes; None for a task without scenes."""
    found: dict[str, dict[str, Scene]] = {}
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        scene = read_scene(path) if method in run.methods else None
        if scene and np.isfinite(scene.shown).any():
            found.setdefault(node, {})[method] = scene
    if not found:
        return None
    shown = {node: {m: found[node][m] for m in run.methods if m in found[node]} for node in list(found)[:_MOST_NODES]}
    first, *others = shown
    figures = {node: panels([_figure(node, of)], wide=across(len(of)) > 2) for node, of in shown.items()}
    lead = (
        f"A scene that {first} has a rating of, from above, and the score that its model predicts for the robot at "
        "each place: bright places disturb nobody. Circles: people, with arrows where they look. Squares: objects. "
        f"Dashed: who interacts with whom or what. Cross: where the robot stood when a person rated it "
        f"{_truth(shown[first]):.2f}; the number above a panel is the prediction there."
    )
    more = [details(f"A scene of {node}, rated {_truth(shown[node]):.2f}", figures[node]) for node in others]
    return block("scenes", "Where the robot may stand", figures[first], *more, lead=lead)


def _figure(node: str, scenes: Mapping[str, Scene]) -> str:
    limits = _limits(scenes)
    said = ", ".join(f"{method} {scene.here:.2f}" for method, scene in scenes.items())
    alt = f"Maps of the score predicted for each place in a scene of {node}; where the robot stood: {said}"
    with multiples(f"{alt}, rated {_truth(scenes):.2f}", len(scenes), height=2.2) as figure:
        for axes, (method, scene) in zip(figure.axes, scenes.items(), strict=True):
            colours = draw_scene(axes, scene, limits)
            axes.set_title(f"{fill(method, 17)}: {scene.here:.2f}", fontsize=8.5)
        figure.figure.colorbar(colours, ax=figure.axes, label="predicted score", shrink=0.8, pad=0.02)
        figure.figure.supxlabel("x [m]", fontsize=9)
        figure.figure.supylabel("y [m]", fontsize=9)
    return figure.markup


def _truth(scenes: Mapping[str, Scene]) -> float:
    """The rating of a scene, the same for every method."""
    return next(iter(scenes.values())).truth


def _limits(scenes: Mapping[str, Scene]) -> tuple[float, float]:
    """The range of all predictions that are drawn, rounded outwards to tenths."""
    shown = np.concatenate([scene.shown.ravel() for scene in scenes.values()])
    return floor(10 * np.nanmin(shown)) / 10, ceil(10 * np.nanmax(shown)) / 10
