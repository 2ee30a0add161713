"""Learning curves: the main metrics of the task, then other measures of quality, and numbers of steps last.

Those of a comparison are means over seeds with a band for their 95 % confidence intervals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedapps.report.figures import drawing
from fedapps.report.metrics import columns, describe
from fedapps.report.palette import PlotStyle, plot_styles
from fedapps.report.records import Comparison, RoundRecord
from fedapps.report.rendering import render_section
from fedapps.report.results import curve, leading_metric, main_metrics
from fedapps.report.run_data import RunData
from fedapps.report.series import mark

_OPEN = 2
_MOST = 12
_WIDE_RANGE = 30

ORDER = 60


def section(run: RunData) -> Markup | None:
    """Up to 12 panels, two of them open; None if no round has metrics."""
    if run.comparison:
        return _over_seeds(run, run.comparison)
    wanted = [("evaluate", name) for name in _names(run, "evaluate")]
    wanted += [("train", name) for name in _names(run, "train") if not name.endswith("_parameters")]
    main = main_metrics(run)
    wanted.sort(key=lambda item: _rank(main, *item))
    drawn = [panel for phase, name in wanted if (panel := _panel(run, phase, name, kept=name in main))][:_MOST]
    if not drawn:
        return None
    return render_section("curves", styles=plot_styles(run.methods), shown=drawn[:_OPEN], more=drawn[_OPEN:])


def _rank(main: Sequence[str], phase: str, name: str) -> tuple[int, int]:
    """The main metrics, then what is better if lower or higher, on test data before training; numbers of steps last."""
    if phase == "evaluate" and name in main:
        return 0, main.index(name)
    known = bool(describe(name).better)
    return 1 + 2 * (not known) + (phase == "train"), 0


def _names(run: RunData, phase: str) -> list[str]:
    return columns(name for record in run.rounds for name in _values(record, phase))


def _values(record: RoundRecord, phase: str) -> dict[str, float]:
    return dict(record.evaluate if phase == "evaluate" else record.train)


def _panel(run: RunData, phase: str, name: str, *, kept: bool) -> Markup | None:
    """The curves of a metric; None if there are none or, unless the metric is ``kept``, if it never changes."""
    metric = describe(name)
    curves = {method: curve(run, method, lambda r: _values(r, phase).get(name)) for method in run.methods}
    curves = {method: points for method, points in curves.items() if any(map(math.isfinite, points[1]))}
    if not curves:
        return None
    finite = [y for _, points in curves.values() for y in points if math.isfinite(y)]
    if not kept and len(finite) > 1 and min(finite) == max(finite):
        return None
    title = metric.axis if phase == "evaluate" else f"training: {metric.axis}"
    heading = metric.title if phase == "evaluate" else title
    return _drawn(title, heading, curves, plot_styles(run.methods))


def _over_seeds(run: RunData, comparison: Comparison) -> Markup | None:
    styles = plot_styles(run.methods)
    drawn, leading = [], leading_metric(run)
    for title, part in comparison.parts.items():
        names = dict.fromkeys(name for courses in part.curves.values() for name in courses)
        for name in sorted(names, key=lambda name: leading is None or name != leading.name):
            courses = {method: of[name] for method, of in part.curves.items() if name in of and of[name].rounds}
            lines = {method: (course.rounds, course.mean) for method, course in courses.items()}
            bands = {method: course.half for method, course in courses.items() if not any(map(math.isnan, course.half))}
            if any(len(course.rounds) > 1 for course in courses.values()):
                metric = describe(name)
                heading = f"{metric.title}, {title}" if title else metric.title
                drawn.append(_drawn(metric.axis, heading, lines, styles, bands))
    if not drawn:
        return None
    seeds = max(part.seeds for part in comparison.parts.values())
    return render_section("curves", styles=styles, shown=drawn[:_OPEN], more=drawn[_OPEN:_MOST], seeds=seeds)


def _drawn(
    title: str,
    heading: str,
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    styles: Mapping[str, PlotStyle],
    bands: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> Markup:
    """A figure of curves, with bands of these half widths around them."""
    finite = [y for _, points in curves.values() for y in points if math.isfinite(y)]
    ends = ", ".join(f"{method} {points[1][-1]:.4g}" for method, points in curves.items())
    with drawing(f"Line chart of {title} over rounds; final values: {ends}") as figure:
        axes = figure.axes[0]
        for method, (x, y) in curves.items():
            draw_line(axes, x, y, styles[method], method)
            if method in bands:
                low, high = np.subtract(y, bands[method]), np.add(y, bands[method])
                mark(axes.fill_between(x, low, high, color=styles[method].colour, alpha=0.12, linewidth=0), method)
        if min(finite) > 0 and max(finite) / min(finite) > _WIDE_RANGE:
            axes.set_yscale("log")
        axes.set_title(heading)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure.markup


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: PlotStyle, name: str) -> None:
    """Draw the line of a series, with markers if it has few points."""
    few = len(x) <= 30
    (line,) = axes.plot(x, y, style.dash, color=style.colour, marker=style.marker if few else None, markersize=4)
    mark(line, name)
