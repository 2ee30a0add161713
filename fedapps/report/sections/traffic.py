"""Traffic: bytes per round, and the main metric against the bytes sent so far."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np
from markupsafe import Markup

from fedapps.report.figures import drawing
from fedapps.report.formats import BYTE_UNITS, format_bytes
from fedapps.report.metrics import Metric
from fedapps.report.palette import NEUTRAL, plot_styles
from fedapps.report.rendering import render_section
from fedapps.report.results import leading_in_rounds
from fedapps.report.run_data import RunData

from .curves import draw_line

ORDER = 150


def section(run: RunData) -> Markup | None:
    """Bytes per round in both directions, and the main metric against all bytes sent so far."""
    most = max((max(r.bytes_down, r.bytes_up) for r in run.rounds), default=0.0)
    if not most > 0:
        return None
    metric = leading_in_rounds(run)
    by_bytes = _by_bytes(run, metric) if metric else None
    figures = [_per_round(run, most), *([by_bytes] if by_bytes else [])]
    return render_section("traffic", styles=plot_styles(run.methods), figures=figures)


def _scale(most: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in BYTE_UNITS if most >= scale), ("B", 1.0))


def _per_round(run: RunData, most: float) -> Markup:
    unit, scale = _scale(most)
    styles = plot_styles(run.methods)
    totals = ", ".join(f"{m} {format_bytes(sum(r.bytes_down + r.bytes_up for r in run.of(m)))}" for m in run.methods)
    alt = f"Bar chart of the bytes per round, to and from the nodes, by method; totals: {totals}"
    with drawing(alt, height=1.0 + 0.5 * len(styles)) as figure:
        axes = figure.axes[0]
        for place, (method, style) in enumerate(styles.items()):
            for offset, alpha, way in ((-0.2, 1.0, "bytes_down"), (0.2, 0.55, "bytes_up")):
                sent = np.array([getattr(record, way) for record in run.of(method)]) / scale
                if sent.size:
                    reach = [[sent.mean() - sent.min()], [sent.max() - sent.mean()]]
                    errors = reach if np.ptp(sent) > 0.02 * sent.max() else None
                    bars = axes.barh(place + offset, sent.mean(), 0.36, xerr=errors, ecolor=NEUTRAL)
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
