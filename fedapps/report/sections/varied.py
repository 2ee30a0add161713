"""Results against a varied key of the run config: the main metric, and the rounds and steps to a target."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.base.report.figures import drawing, mark
from fedapps.base.report.metrics import ROUNDS_TO_TARGET, STEPS_TO_TARGET, Metric, describe
from fedapps.base.report.palette import plot_styles
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Varied

from . import section_of

_WIDE_RANGE = 10

ORDER = 20


def section(run: RunData) -> Markup | None:
    """A figure of all methods for each of these metrics; None if no key was varied."""
    varied, metric = run.comparison and run.comparison.varied, run.leading_metric()
    if not varied or metric is None:
        return None
    seeds = max(part.seeds for part in varied.values)
    measured = {name for part in varied.values for row in part.table.values() for name in row}
    metrics = [metric, *(describe(name) for name in (ROUNDS_TO_TARGET, STEPS_TO_TARGET) if name in measured)]
    return section_of(
        "varied",
        key=varied.key,
        seeds=seeds,
        targets=bool(metrics[1:]),
        styles=plot_styles(run.methods),
        figures=[_figure(run, varied, each) for each in metrics],
    )


def _figure(run: RunData, varied: Varied, metric: Metric) -> Markup:
    positions = _positions(varied)
    texts = {x: str(part.value) for x, part in zip(positions, varied.values, strict=True)}
    lines = {}
    for method in run.methods:
        estimates = [part.complete.get(method, {}).get(metric.name) for part in varied.values]
        points = sorted((x, one.mean, one.half or 0.0) for x, one in zip(positions, estimates, strict=True) if one)
        if points:
            lines[method] = points
    means_of = "; ".join(
        f"{method} {', '.join(f'{mean:.4g}' for _, mean, _ in points)}" for method, points in lines.items()
    )
    with drawing(f"Line chart of {metric.axis} against {varied.key}: {means_of}", width=7.6, height=4.2) as figure:
        axes = figure.axes[0]
        for method, points in lines.items():
            style = plot_styles(run.methods)[method]
            x, means = [x for x, _, _ in points], [mean for _, mean, _ in points]
            low, high = [mean - half for _, mean, half in points], [mean + half for _, mean, half in points]
            mark(axes.fill_between(x, low, high, color=style.colour, alpha=0.12, linewidth=0), method)
            (line,) = axes.plot(x, means, style.dash, color=style.colour, marker=style.marker, markersize=4.5)
            mark(line, method, at=[texts[position] for position in x])
        drawn = [mean for points in lines.values() for _, mean, _ in points]
        if min(drawn) > 0 and max(drawn) > _WIDE_RANGE * min(drawn):
            axes.set_yscale("log")
        if min(positions) > 0 and max(positions) > _WIDE_RANGE * min(positions):
            axes.set_xscale("log")
        axes.set_xticks(positions, [str(part.value) for part in varied.values])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(varied.key)
        axes.set_title(metric.title)
    return figure.markup


def _positions(varied: Varied) -> list[float]:
    """The x coordinate of each value: the value if all are numbers, or else its index."""
    values = [part.value for part in varied.values]
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return numbers if len(numbers) == len(values) else [float(index) for index in range(len(values))]
