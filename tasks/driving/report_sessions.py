"""Driving sessions: their outcomes in the closed loop, and one recorded session under each method.

The measures are those of the APFL paper, Section IV-B. The non-proactive baseline assumes that the human keeps the
current speed.

A session is drawn as the road from above and as the gap between the cars with its forecasts. The width of the road is
exaggerated. Forecasts for a car that keeps its lane differ only along the road, by little compared with the distance
driven, so the plot of the gap shows their differences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.path import Path as Outline

from fedapps.base.report.figures import drawing
from fedapps.base.report.metrics import INK, NEUTRAL, plot_styles
from fedapps.base.report.sections import Array, Arrays, NodeResult, ReportedRun, section_markup

ORDER = 90
_MEASURES = (
    ("time_to_lane_change", "time to the start of the lane change [s]"),
    ("distance_at_start", "distance between the cars at that time [m]"),
    ("cost", "cost of a session"),
)
_BASELINE = "non-proactive"
Group = tuple[list[NodeResult], str]


def section(run: ReportedRun) -> Markup | None:
    """Outcomes of sessions, then paths; None for tasks without driving."""
    parts = [part for part in (closed_loop(run), paths(run)) if part is not None]
    return Markup("\n").join(parts) if parts else None


def closed_loop(run: ReportedRun) -> Markup | None:
    """Box plots over all sessions of all nodes; None for tasks without driving."""
    evaluations = run.last_evaluations()
    groups: dict[str, Group] = {method: (list(nodes.values()), "closed_loop") for method, nodes in evaluations.items()}
    # The baseline uses no model and is therefore the same for every method: draw it once.
    for nodes in evaluations.values():
        if any(key.startswith("non_proactive.") for node in nodes.values() for key in node.series):
            groups[_BASELINE] = (list(nodes.values()), "non_proactive")
            break
    drawn = [panel for key, title in _MEASURES if (panel := _panel(run, groups, key, title))]
    if not drawn:
        return None
    started = {name: _started(*group) for name, group in groups.items()}
    counts = [(name, sum(map(bool, flags)), len(flags)) for name, flags in started.items() if flags]
    return section_markup(Path(__file__).parent, "closed_loop", figures=drawn, started=counts)


def _panel(run: ReportedRun, groups: dict[str, Group], key: str, title: str) -> Markup | None:
    boxes = {name: list(_sessions(nodes, f"{prefix}.{key}")) for name, (nodes, prefix) in groups.items()}
    boxes = {name: values for name, values in boxes.items() if values}
    if not boxes:
        return None
    styles = plot_styles(run.methods)
    colours = [styles[name].colour if name in styles else NEUTRAL for name in boxes]
    medians = ", ".join(f"{name} {median(values):.4g}" for name, values in boxes.items())
    with drawing(f"Box plots of {title}, medians: {medians}", height=0.9 + 0.42 * len(boxes)) as figure:
        axes = figure.axes[0]
        drawn = axes.boxplot(
            list(boxes.values()),
            orientation="horizontal",
            tick_labels=list(boxes),
            widths=0.6,
            patch_artist=True,
            medianprops={"color": "white", "linewidth": 2.2},
            flierprops={"marker": ".", "markersize": 4, "alpha": 0.6},
        )
        for index, colour in enumerate(colours):
            drawn["boxes"][index].set(facecolor=colour, edgecolor=colour)
            drawn["fliers"][index].set(markerfacecolor=colour, markeredgecolor=colour)
            for part in (*drawn["whiskers"][2 * index : 2 * index + 2], *drawn["caps"][2 * index : 2 * index + 2]):
                part.set(color=colour)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title)
    return figure.markup


def _sessions(nodes: list[NodeResult], name: str) -> Iterator[float]:
    """The finite values of all sessions; measures at the lane change only from sessions in which it started."""
    prefix, _, key = name.partition(".")
    for node in nodes:
        values = node.series.get(name, ())
        started = node.series.get(f"{prefix}.started", ())
        if key == "cost" or len(started) != len(values):
            started = (1.0,) * len(values)
        yield from (value for value, go in zip(values, started, strict=True) if go and math.isfinite(value))


def _started(nodes: list[NodeResult], prefix: str) -> list[float]:
    """Whether the lane change started, for each session of all nodes."""
    return [flag for node in nodes for flag in node.series.get(f"{prefix}.started", ())]


_MOST_NODES = 4
_MARGIN = 4.0
_TRACE = re.compile(r"trace\.(\d+)\.robot")
_ROBOT = INK
_GRAY = "#9ca3af"
_FORECASTS = 6
_SAMPLES = 12
_CAR = Outline([(-1, -0.5), (1, -0.5), (1, 0.5), (-1, 0.5), (-1, -0.5)])
_SHOULDER = 2.2


@dataclass(frozen=True)
class DrivingTrace:
    """One session of T steps. Positions are (x lateral, y longitudinal) in metres.

    Attributes
    ----------
    robot, human : ndarray of shape [T, 2]
        Paths of the robot and the human driver.
    gray : ndarray of shape [T, 2] or None
        Path of the car ahead of the human, if there is one.
    predicted : ndarray of shape [P, K, H, 2]
        K sampled forecasts of the human's next H positions, made at P steps; P may be 0.
    predicted_at : ndarray of shape [P]
        The steps at which the forecasts were made.
    start : int or None
        Step at which the lane change starts; None if it never does.
    """

    robot: Array
    human: Array
    gray: Array | None
    predicted: Array
    predicted_at: npt.NDArray[np.int64]
    start: int | None


def _drawable(path: Path) -> dict[int, DrivingTrace]:
    """The sessions in a ``traces.safetensors`` by number, those with at least one step and finite positions only."""
    arrays = Arrays(path)
    numbers = sorted(int(match[1]) for key in arrays if (match := _TRACE.fullmatch(key)))
    traces = {number: _trace(arrays, f"trace.{number}.") for number in numbers}
    return {
        number: trace
        for number, trace in traces.items()
        if trace.robot.size and np.isfinite(trace.robot).all() and np.isfinite(trace.human).all()
    }


def _trace(arrays: Arrays, prefix: str) -> DrivingTrace:
    robot = arrays.get(prefix + "robot", None, 2)
    steps = len(robot)
    forecasts = prefix + "predicted" in arrays
    predicted = arrays.get(prefix + "predicted", None, None, None, 2) if forecasts else np.empty((0, 0, 0, 2))
    predicted_at = arrays.get(prefix + "predicted_at", len(predicted)) if forecasts else np.empty(0)
    start = float(arrays.get(prefix + "lane_change_start")) if prefix + "lane_change_start" in arrays else -1.0
    return DrivingTrace(
        robot=robot,
        human=arrays.get(prefix + "human", steps, 2),
        gray=arrays.get(prefix + "gray", steps, 2) if prefix + "gray" in arrays else None,
        predicted=predicted,
        predicted_at=predicted_at.astype(np.int64),
        start=int(start) if 0 <= start < steps else None,
    )


def paths(run: ReportedRun) -> Markup | None:
    """A session of each of up to four nodes under each method, the first node's open; None without traces."""
    by_node: dict[str, dict[str, Path]] = {}
    for (method, node), path in run.traces.items():
        if method in run.methods:
            by_node.setdefault(node, {})[method] = path
    # Nodes that have traces of most methods come first, because they allow a comparison.
    nodes = sorted(by_node, key=lambda node: (-len(by_node[node]), node))[:_MOST_NODES]
    drawn = {node: figures for node in nodes if (figures := _pictures(run, node, by_node[node]))}
    return section_markup(Path(__file__).parent, "paths", nodes=drawn) if drawn else None


def _pictures(run: ReportedRun, node: str, paths: dict[str, Path]) -> list[Markup]:
    traces = {method: _drawable(paths[method]) for method in run.methods if method in paths}
    traces = {method: sessions for method, sessions in traces.items() if sessions}
    if not traces:
        return []
    shared = set.intersection(*map(set, traces.values()))
    numbers = sorted(shared) or sorted({number for sessions in traces.values() for number in sessions})
    # Show the session in which most methods change lanes.
    changes = [n for sessions in traces.values() for n, trace in sessions.items() if trace.start is not None]
    number = max(numbers, key=changes.count)
    shown = {method: sessions[number] for method, sessions in traces.items() if number in sessions}
    gaps = np.concatenate([gap(trace) for trace in shown.values()])
    limits = (min(float(gaps.min()), 0.0) - _MARGIN, max(float(gaps.max()), 0.0) + _MARGIN)
    styles = plot_styles(run.methods)
    return [_draw_session(method, node, trace, styles[method].colour, limits) for method, trace in shown.items()]


def _draw_session(method: str, node: str, trace: DrivingTrace, colour: str, limits: tuple[float, float]) -> Markup:
    """Draw a session with the forecasts of a method; ``limits`` in m are those of all gaps that are compared."""
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
    indices = np.unique(np.linspace(0, count - 1, min(count, _FORECASTS)).astype(int))
    return [(int(trace.predicted_at[index]), trace.predicted[index][:_SAMPLES]) for index in indices]


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
