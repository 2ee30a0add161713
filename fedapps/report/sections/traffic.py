"""Traffic: bytes per round, the main metric against the bytes sent so far, and in a comparison against those that a
node sends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from markupsafe import Markup

from fedapps.base.report.figures import draw_line, drawing, mark
from fedapps.base.report.formats import BYTE_UNITS, format_bytes
from fedapps.base.report.metrics import Metric
from fedapps.base.report.palette import NEUTRAL, plot_styles
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Comparison

from . import section_of

_PER_NODE = "bytes_per_client_round"
_UNEQUAL, _WIDE_RANGE = 1.1, 10.0

ORDER = 150


def section(run: RunData) -> Markup | None:
    """Bytes per round in both directions, and the main metric against all bytes sent so far.

    In a comparison whose methods send different numbers of bytes, the main metric against those of a node in a round.
    """
    most = max((max(r.bytes_down, r.bytes_up) for r in run.rounds), default=0.0)
    in_rounds, final = run.leading_in_rounds(), run.leading_metric()
    drawn = [
        _per_round(run, most) if most > 0 else None,
        _by_bytes(run, in_rounds) if in_rounds else None,
        _by_method(run.comparison, run.methods, final) if run.comparison and final else None,
    ]
    figures = [figure for figure in drawn if figure]
    return section_of("traffic", styles=plot_styles(run.methods), figures=figures) if figures else None


def _scale(most: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in BYTE_UNITS if most >= scale), ("B", 1.0))


def _per_round(run: RunData, most: float) -> Markup:
    unit, scale = _scale(most)
    styles = plot_styles(run.methods)
    totals = ", ".join(f"{m} {format_bytes(sum(r.bytes_down + r.bytes_up for r in run.of(m)))}" for m in run.methods)
    alt = f"Bar chart of the bytes per round, to and from the nodes, by method; totals: {totals}"
    with drawing(alt, height=1.0 + 0.5 * len(styles)) as figure:
        axes = figure.axes[0]
        for index, (method, style) in enumerate(styles.items()):
            for offset, alpha, way in ((-0.2, 1.0, "bytes_down"), (0.2, 0.55, "bytes_up")):
                sent = np.array([getattr(record, way) for record in run.of(method)]) / scale
                if sent.size:
                    reach = [[sent.mean() - sent.min()], [sent.max() - sent.mean()]]
                    errors = reach if np.ptp(sent) > 0.02 * sent.max() else None
                    bars = axes.barh(index + offset, sent.mean(), 0.36, xerr=errors, ecolor=NEUTRAL)
                    bars[0].set(color=style.colour, alpha=alpha)
        axes.set_yticks(range(len(styles)), list(styles))
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{unit} per round  (dark: to nodes, pale: from nodes)")
        axes.set_xlabel(f"mean over rounds [{unit}]; thin lines: minimum to maximum")
    return figure.markup


def _by_bytes(run: RunData, metric: Metric) -> Markup | None:
    curves = {}
    for method in run.methods:
        records = run.of(method)
        sent = list(accumulate(r.bytes_down + r.bytes_up for r in records))
        points = [
            (total, r.evaluate[metric.name])
            for total, r in zip(sent, records, strict=True)
            if math.isfinite(r.evaluate.get(metric.name, math.nan))
        ]
        if points and points[-1][0] > 0:
            curves[method] = points
    if not curves:
        return None
    unit, scale = _scale(max(points[-1][0] for points in curves.values()))
    with drawing(f"Line chart of {metric.axis} against the bytes sent so far, by method") as figure:
        axes = figure.axes[0]
        for method, points in curves.items():
            x, y = [total / scale for total, _ in points], [value for _, value in points]
            draw_line(axes, x, y, plot_styles(run.methods)[method], method)
        axes.set_title(f"{metric.axis} against traffic")
        axes.set_xlabel(f"sent so far, both directions [{unit}]")
    return figure.markup


def _by_method(comparison: Comparison, methods: Sequence[str], metric: Metric) -> Markup | None:
    rows = {method: comparison.table.get(method, {}) for method in methods}
    points = {
        method: (row[_PER_NODE].mean, row[metric.name])
        for method, row in rows.items()
        if metric.name in row and _PER_NODE in row and row[_PER_NODE].mean > 0
    }
    sent = [number for number, _ in points.values()]
    if not sent or max(sent) < _UNEQUAL * min(sent):
        return None
    unit, scale = _scale(max(sent))
    points_of = "; ".join(
        f"{method} {format_bytes(number)}, {estimate.mean:.4g}" for method, (number, estimate) in points.items()
    )
    with drawing(
        f"Scatter plot of {metric.axis} against the bytes that a node sends in a round: {points_of}"
    ) as figure:
        axes = figure.axes[0]
        for method, (number, estimate) in points.items():
            style, half = plot_styles(methods)[method], estimate.half or 0.0
            x = number / scale
            (limits,) = axes.plot([x, x], [estimate.mean - half, estimate.mean + half], color=style.colour, linewidth=1)
            (dot,) = axes.plot([x], [estimate.mean], style.marker, color=style.colour)
            mark(limits, method)
            mark(dot, method)
        if max(sent) > _WIDE_RANGE * min(sent):
            axes.set_xscale("log")
        axes.margins(0.08)
        axes.set_title(f"{metric.axis} against traffic")
        axes.set_xlabel(f"sent by a node in a round [{unit}]; lines: 95 % interval")
    return figure.markup
