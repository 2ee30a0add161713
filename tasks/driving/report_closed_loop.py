"""Closed-loop driving: time to the lane change, distance between the cars at its start, and cost.

The measures are those of the APFL paper, Section IV-B. The non-proactive baseline assumes that the human keeps the
current speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from markupsafe import Markup

from fedapps.base.report.figures import drawing
from fedapps.base.report.metrics import NEUTRAL, plot_styles
from fedapps.base.report.sections import NodeResult, ReportedRun, section_markup

_MEASURES = (
    ("time_to_lane_change", "time to the start of the lane change [s]"),
    ("distance_at_start", "distance between the cars at that time [m]"),
    ("cost", "cost of a session"),
)
_BASELINE = "non-proactive"

Group = tuple[list[NodeResult], str]

ORDER = 90


def section(run: ReportedRun) -> Markup | None:
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
            for part in (
                *drawn["whiskers"][2 * index : 2 * index + 2],
                *drawn["caps"][2 * index : 2 * index + 2],
            ):
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
