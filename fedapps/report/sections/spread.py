"""The results of every node: one dot per node and method; lines connect the dots of a node."""

from __future__ import annotations

import math

import numpy as np
from markupsafe import Markup

from fedapps.base.report.figures import drawing, mark
from fedapps.base.report.metrics import Metric, describe
from fedapps.base.report.palette import NEUTRAL, plot_styles
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Comparison

from . import section_of

_ROOM = 55  # letters of method names that fit side by side

_NARROW = 5.2

ORDER = 70


def section(run: RunData) -> Markup | None:
    """The main metric that differs between the nodes of most methods, at the last evaluation; None if none differs.

    Nodes with the same model report the same value where all of them are tested on the same examples.
    """
    if run.comparison:
        leading = run.leading_metric()
        by_metric = _of_comparison(run.comparison, leading.name if leading else "")
    else:
        by_metric = [(describe(name), _values(run, name)) for name in run.main_metrics()]
    by_metric = [(metric, values) for metric, values in by_metric if any(map(_differ, values.values()))]
    if not by_metric:
        return None
    metric, values = max(by_metric, key=lambda item: sum(map(_differ, item[1].values())))
    styles = plot_styles(run.methods)
    methods = list(values)
    nodes = sorted({node for row in values.values() for node in row})
    ranges = ", ".join(
        f"{method} from {min(row.values()):.4g} to {max(row.values()):.4g}" for method, row in values.items()
    )
    width = min(7.6, max(_NARROW, 1.2 + 0.8 * len(methods)))
    with drawing(f"Dot plot of {metric.axis} by node and method: {ranges}", width=width, height=3.3) as figure:
        axes = figure.axes[0]
        for node in nodes:
            line = [values[method].get(node, math.nan) for method in methods]
            (drawn,) = axes.plot(range(len(methods)), line, color="#9ca3af", linewidth=0.7, alpha=0.7, zorder=1)
            mark(drawn, node, at=methods)
        for index, method in enumerate(methods):
            row = np.array(list(values[method].values()))
            axes.plot([index - 0.28, index + 0.28], [np.median(row)] * 2, color=NEUTRAL, linewidth=2.4, zorder=2)
            axes.scatter(
                np.full(row.size, index),
                row,
                s=34,
                color=styles[method].colour,
                marker=styles[method].marker,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
            )
        crowded = sum(map(len, methods)) > _ROOM
        axes.set_xticks(range(len(methods)), methods, rotation=35 * crowded, ha="right" if crowded else "center")
        axes.set_xlim(-0.5, len(methods) - 0.5)
        axes.set_title(metric.title)
    seeds = run.comparison.seeds if run.comparison else 0
    return section_of("spread", nodes=len(nodes), figure=figure.markup, seeds=seeds, wide=width > _NARROW)


def _of_comparison(comparison: Comparison, leading: str) -> list[tuple[Metric, dict[str, dict[str, float]]]]:
    """The means over seeds by metric, method and node; those of the main metric stand first."""
    names = dict.fromkeys(name for of_method in comparison.nodes.values() for name in of_method)
    return [
        (describe(name), {method: dict(of[name]) for method, of in comparison.nodes.items() if name in of})
        for name in sorted(names, key=lambda name: name != leading)
    ]


def _values(run: RunData, metric: str) -> dict[str, dict[str, float]]:
    """The finite values by method and node."""
    values: dict[str, dict[str, float]] = {}
    for method, evaluated in run.last_evaluations().items():
        numbers = {key: node.numbers.get(metric, math.nan) for key, node in evaluated.items()}
        finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
        if finite:
            values[method] = finite
    return values


def _differ(row: dict[str, float]) -> bool:
    return min(row.values()) < max(row.values())
