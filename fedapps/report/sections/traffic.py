"""What travels: bytes in a round, and what quality the bytes bought."""

from __future__ import annotations

import math
from itertools import accumulate

import numpy as np

from fedapps.report.figures import drawing
from fedapps.report.markup import legend, panels
from fedapps.report.markup import section as block
from fedapps.report.metrics import Metric, size
from fedapps.report.palette import NEUTRAL, looks
from fedapps.report.results import leading_in_rounds
from fedapps.report.run_data import RunData

from .curves import draw_line

_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

ORDER = 150


def section(run: RunData) -> str | None:
    """Bytes of a round, down and up, and the leading metric against all bytes so far."""
    most = max((max(r.bytes_down, r.bytes_up) for r in run.rounds), default=0.0)
    if not most > 0:
        return None
    metric = leading_in_rounds(run)
    bought = _bought(run, metric) if metric else None
    figures = [_per_round(run, most), *([bought] if bought else [])]
    return block("traffic", "Bytes on the wire", legend(looks(run.methods)), panels(figures))


def _scale(most: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if most >= scale), ("B", 1.0))


def _per_round(run: RunData, most: float) -> str:
    unit, scale = _scale(most)
    looked = looks(run.methods)
    totals = ", ".join(f"{m} {size(sum(r.bytes_down + r.bytes_up for r in run.of(m)))}" for m in run.methods)
    alt = f"Bars of the bytes in a round, to the nodes and from them, for each method; in all {totals}"
    with drawing(alt, height=1.0 + 0.5 * len(looked)) as figure:
        axes = figure.axes[0]
        for place, (method, look) in enumerate(looked.items()):
            for offset, alpha, way in ((-0.2, 1.0, "bytes_down"), (0.2, 0.55, "bytes_up")):
                sent = np.array([getattr(record, way) for record in run.of(method)]) / scale
                if sent.size:
                    reach = [[sent.mean() - sent.min()], [sent.max() - sent.mean()]]
                    errors = reach if np.ptp(sent) > 0.02 * sent.max() else None
                    bars = axes.barh(place + offset, sent.mean(), 0.36, xerr=errors, ecolor=NEUTRAL)
                    bars[0].set(color=look.colour, alpha=alpha)
        axes.set_yticks(range(len(looked)), list(looked))
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(f"{unit} in a round  (full colour: to nodes, pale: from nodes)")
        axes.set_xlabel(f"mean [{unit}], lines from least to most")
    return figure.markup


def _bought(run: RunData, metric: Metric) -> str | None:
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
    with drawing(f"Line chart of {metric.axis} against all bytes sent so far, for each method") as figure:
        axes = figure.axes[0]
        for method, points in curves.items():
            x, y = [total / scale for total, _ in points], [value for _, value in points]
            draw_line(axes, x, y, looks(run.methods)[method])
        axes.set_title(f"{metric.axis} for the bytes spent")
        axes.set_xlabel(f"sent so far, both ways [{unit}]")
    return figure.markup
