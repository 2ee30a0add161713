"""Results against a varied key of the run config: the main metric, and the rounds and steps to a target."""

from __future__ import annotations

import math

from markupsafe import Markup

from fedapps.report.figures import drawing
from fedapps.report.metrics import ROUNDS_TO_TARGET, STEPS_TO_TARGET, Metric, describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import Varied
from fedapps.report.rendering import render_section
from fedapps.report.results import leading_metric
from fedapps.report.run_data import RunData
from fedapps.report.series import mark

_WIDE_RANGE = 10

ORDER = 20


def section(run: RunData) -> Markup | None:
    """A figure of all methods for each of these metrics; None if no key was varied."""
    varied, metric = run.comparison and run.comparison.varied, leading_metric(run)
    if not varied or metric is None:
        return None
    seeds = max(part.seeds for _, part in varied.values)
    found = {name for _, part in varied.values for row in part.table.values() for name in row}
    metrics = [metric, *(describe(name) for name in (ROUNDS_TO_TARGET, STEPS_TO_TARGET) if name in found)]
    return render_section(
        "varied",
        key=varied.key,
        seeds=seeds,
        targets=bool(metrics[1:]),
        styles=plot_styles(run.methods),
        figures=[_figure(run, varied, each) for each in metrics],
    )


def _figure(run: RunData, varied: Varied, metric: Metric) -> Markup:
    places = _places(varied)
    texts = {place: str(value) for place, (value, _) in zip(places, varied.values, strict=True)}
    lines = {}
    for method in run.methods:
        spreads = [part.complete.get(method, {}).get(metric.name) for _, part in varied.values]
        points = sorted(
            (x, s.mean, 0.0 if math.isnan(s.half) else s.half) for x, s in zip(places, spreads, strict=True) if s
        )
        if points:
            lines[method] = points
    said = "; ".join(
        f"{method} {', '.join(f'{mean:.4g}' for _, mean, _ in points)}" for method, points in lines.items()
    )
    with drawing(f"Line chart of {metric.axis} against {varied.key}: {said}", width=7.6, height=4.2) as figure:
        axes = figure.axes[0]
        for method, points in lines.items():
            style = plot_styles(run.methods)[method]
            x, means = [x for x, _, _ in points], [mean for _, mean, _ in points]
            low, high = [mean - half for _, mean, half in points], [mean + half for _, mean, half in points]
            mark(axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0), method)
            (line,) = axes.plot(x, means, style.dash, color=style.colour, marker=style.marker, markersize=4.5)
            mark(line, method, at=[texts[place] for place in x])
        found = [mean for points in lines.values() for _, mean, _ in points]
        if min(found) > 0 and max(found) > _WIDE_RANGE * min(found):
            axes.set_yscale("log")
        if min(places) > 0 and max(places) > _WIDE_RANGE * min(places):
            axes.set_xscale("log")
        axes.set_xticks(places, [str(value) for value, _ in varied.values])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(varied.key)
        axes.set_title(metric.title)
    return figure.markup


def _places(varied: Varied) -> list[float]:
    """The x coordinate of each value: the value if all are numbers, or else its index."""
    numbers = [float(v) for v, _ in varied.values if isinstance(v, int | float) and not isinstance(v, bool)]
    return numbers if len(numbers) == len(varied.values) else [float(place) for place in range(len(varied.values))]
