"""Social scenes: the score predicted for the robot at every position of a recorded scene, one panel per method."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from textwrap import fill

import numpy as np
from markupsafe import Markup

from fedapps.report.figures import panels_per_row, small_multiples
from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData
from fedapps.report.social_drawing import SocialScene, draw_scene, read_scene

_MOST_NODES = 4

ORDER = 110


def section(run: RunData) -> Markup | None:
    """One scene of each of up to four nodes; None for tasks without scenes."""
    found: dict[str, dict[str, SocialScene]] = {}
    for (method, node), path in sorted(run.traces.items(), key=lambda item: item[0][1]):
        scene = read_scene(path) if method in run.methods else None
        if scene and np.isfinite(scene.shown).any():
            found.setdefault(node, {})[method] = scene
    if not found:
        return None
    shown = {node: {m: found[node][m] for m in run.methods if m in found[node]} for node in list(found)[:_MOST_NODES]}
    nodes = [(node, _truth(of), _figure(node, of), panels_per_row(len(of)) > 2) for node, of in shown.items()]
    return render_section("scenes", nodes=nodes)


def _figure(node: str, scenes: Mapping[str, SocialScene]) -> Markup:
    limits = _limits(scenes)
    said = ", ".join(f"{method} {scene.here:.2f}" for method, scene in scenes.items())
    alt = f"Maps of the score predicted for each position in a scene of {node}; at the robot's position: {said}"
    with small_multiples(f"{alt}, rated {_truth(scenes):.2f}", len(scenes), height=2.2) as figure:
        for axes, (method, scene) in zip(figure.axes, scenes.items(), strict=True):
            colours = draw_scene(axes, scene, limits)
            axes.set_title(f"{fill(method, 17)}: {scene.here:.2f}", fontsize=8.5)
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
