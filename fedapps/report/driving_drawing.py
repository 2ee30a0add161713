"""Drawing of one driving session: the road from above, and the gap between the cars with its forecasts.

The width of the road is exaggerated. Forecasts for a car that keeps its lane differ only along the road, by little
compared with the distance driven, so a second plot shows the gap between the cars, where the differences are visible.
"""

from __future__ import annotations

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.path import Path as Outline

from .arrays import Array
from .driving_traces import DrivingTrace
from .figures import drawing
from .palette import INK, NEUTRAL

_ROBOT = INK
_GRAY = "#9ca3af"
_FORECASTS = 6
_SAMPLES = 12
_CAR = Outline([(-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5), (-1, -0.5)])
_SHOULDER = 2.2


def draw_session(method: str, node: str, trace: DrivingTrace, colour: str, limits: tuple[float, float]) -> Markup:
    """Draw one session.

    Parameters
    ----------
    method : str
        Method whose model forecasts the human's motion.
    node : str
        Node of the human driver.
    trace : DrivingTrace
        The session.
    colour : str
        Colour of the method, used for the human.
    limits : (float, float)
        Range of the gap axis in metres, the same for all drawings that are compared.

    Returns
    -------
    Markup
        The figure.
    """
    change = f"starts at step {trace.start}" if trace.start is not None else "never starts"
    alt = f"Paths of the robot and of {node} under {method}; the lane change {change}."
    with drawing(alt, rows=2, height=4.6) as figure:
        road, gaps = figure.axes
        _draw_road(road, trace, colour)
        _draw_gap(gaps, trace, colour)
        gaps.set_ylim(limits)
        road.set_title(f"{method}: the lane change {change}")
    return figure.markup


def gap(trace: DrivingTrace) -> Array:
    """[T], the distance in metres by which the human is ahead of the robot."""
    return trace.human[:, 1] - trace.robot[:, 1]


def _chosen(trace: DrivingTrace) -> list[tuple[int, Array]]:
    """A few evenly spaced forecasts: (step, samples [K, H, 2])."""
    count = len(trace.predicted)
    places = np.unique(np.linspace(0, count - 1, min(count, _FORECASTS)).astype(int))
    return [(int(trace.predicted_at[place]), trace.predicted[place][:_SAMPLES]) for place in places]


def _draw_road(axes: Axes, trace: DrivingTrace, colour: str) -> None:
    for _, samples in _chosen(trace):
        lines = list(samples[..., ::-1])
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=0.6, alpha=0.4))
    cars = [(trace.human, colour), (trace.robot, _ROBOT)]
    for path, paint in [*cars, *([(trace.gray, _GRAY)] if trace.gray is not None else [])]:
        axes.plot(path[:, 1], path[:, 0], color=paint)
        axes.plot(path[0, 1], path[0, 0], marker=_CAR, markersize=13, color=paint, zorder=3)
    if trace.start is not None:
        for path, paint in cars:
            _mark(axes, path[trace.start, 1], path[trace.start, 0], paint)
    lateral = np.concatenate([path[:, 0] for path, _ in cars])
    low, high = float(lateral.min()), float(lateral.max())
    axes.set_ylim(high + _SHOULDER, low - _SHOULDER)
    axes.axhline((low + high) / 2, color=_GRAY, linewidth=0.9, dashes=(8, 6), zorder=0)
    axes.grid(visible=False)
    axes.set_facecolor("#f3f4f6")
    axes.set_xlabel("position along the road [m]")
    axes.set_ylabel("across [m]")


def _draw_gap(axes: Axes, trace: DrivingTrace, colour: str) -> None:
    ahead = gap(trace)
    for step, samples in _chosen(trace):
        steps = np.arange(step + 1, step + 1 + samples.shape[1])
        steps = steps[steps < len(ahead)]
        if steps.size:
            forecast = samples[:, : steps.size, 1] - trace.robot[steps, 1]
            lines = np.stack([np.broadcast_to(steps, forecast.shape), forecast], axis=-1)
            axes.add_collection(LineCollection(list(lines), colors=colour, linewidths=0.7, alpha=0.5))
    axes.plot(ahead, color=colour)
    if trace.start is not None:
        _mark(axes, trace.start, ahead[trace.start], colour)
    axes.axhline(0, color=NEUTRAL, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("lead of the human [m]")


def _mark(axes: Axes, x: float, y: float, colour: str) -> None:
    axes.plot(x, y, "D", color=colour, markersize=6.5, markeredgecolor="white", zorder=4)
