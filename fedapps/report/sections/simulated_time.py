"""Simulated time: the main metric against it, who was waited for, and which nodes are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from fedapps.report.figures import drawing
from fedapps.report.fleet_use import FleetUse, fleet_use, mean_of
from fedapps.report.formats import format_duration, format_number
from fedapps.report.metrics import ROUNDS_TO_TARGET, TIME_TO_TARGET, Metric
from fedapps.report.palette import NEUTRAL, plot_styles
from fedapps.report.rendering import render_section
from fedapps.report.results import leading_in_rounds
from fedapps.report.run_data import RunData

from .curves import draw_line

ORDER = 65
_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def section(run: RunData) -> Markup | None:
    """Figures and a table of methods; None without simulated time."""
    metric = leading_in_rounds(run)
    uses = {method: use for method in run.methods if (use := fleet_use(run, method, metric))}
    if not uses:
        return None
    figures = [_by_time(run, metric)] if metric else []
    figures += [_busy(run, uses), _participation(run, uses)]
    target = any(TIME_TO_TARGET in of.final for of in (run.summary or {}).values())
    return render_section(
        "simulated_time",
        styles=plot_styles(run.methods),
        figures=[figure for figure in figures if figure],
        head=_head(metric, target=target),
        rows=[_row(run, method, use, metric, target=target) for method, use in uses.items()],
    )


def _head(metric: Metric | None, *, target: bool) -> list[str]:
    of_metric = [f"{metric.axis}, all nodes", f"{metric.axis}, slowest tenth"] if metric else []
    to_target = ["to the target", "rounds to the target"] if target else []
    return ["method", "simulated time", *to_target, "nodes busy", "mean staleness", "largest staleness", *of_metric]


def _row(run: RunData, method: str, use: FleetUse, metric: Metric | None, *, target: bool) -> list[str]:
    final = (run.summary or {})[method].final if method in (run.summary or {}) else {}
    to_target = []
    if target:
        found = TIME_TO_TARGET in final
        to_target = [format_duration(final[TIME_TO_TARGET]) if found else "not reached"]
        to_target += [f"{final[ROUNDS_TO_TARGET]:.0f}" if found else "–"]
    return [
        method,
        format_duration(use.seconds),
        *to_target,
        f"{100 * mean_of(use.busy.values()):.0f} %",
        format_number(use.staleness) if math.isfinite(use.staleness) else "–",
        f"{use.most_stale:.0f}",
        *([format_number(use.everyone), format_number(use.slowest)] if metric else []),
    ]


def _by_time(run: RunData, metric: Metric) -> Markup | None:
    """The main metric against simulated time."""
    curves = {}
    for method in run.methods:
        points = [(r.clock, r.evaluate.get(metric.name, math.nan)) for r in run.of(method)]
        if found := [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]:
            curves[method] = found
    if not curves:
        return None
    longest = max(points[-1][0] for points in curves.values())
    unit, scale = next(((unit, scale) for unit, scale in _UNITS if longest >= 2 * scale), _UNITS[-1])
    with drawing(f"Line chart of {metric.axis} against simulated time, by method") as figure:
        axes = figure.axes[0]
        for method, points in curves.items():
            x, y = [time / scale for time, _ in points], [value for _, value in points]
            draw_line(axes, x, y, plot_styles(run.methods)[method], method)
        axes.set_title(f"{metric.axis} against simulated time")
        axes.set_xlabel(f"simulated time [{unit}]")
    return figure.markup


def _busy(run: RunData, uses: Mapping[str, FleetUse]) -> Markup:
    """How much of the time each node worked, by the speed of its device: fast nodes wait for slow ones."""
    means = ", ".join(f"{method} {100 * mean_of(use.busy.values()):.0f} %" for method, use in uses.items())
    with drawing(f"Scatter plot of the time in which each node is busy, by its speed; means: {means}") as figure:
        axes = figure.axes[0]
        for method, use in uses.items():
            style = plot_styles(run.methods)[method]
            x, y = [run.speeds[node] for node in use.busy], [100 * part for part in use.busy.values()]
            axes.plot(x, y, linestyle="none", marker=style.marker, color=style.colour, markersize=4, alpha=0.7)
        if min(run.speeds.values()) > 0:
            axes.set_xscale("log")
        axes.set_ylim(0, 103)
        axes.set_title("time in which nodes are busy [%]")
        axes.set_xlabel("seconds of a local step")
    return figure.markup


def _participation(run: RunData, uses: Mapping[str, FleetUse]) -> Markup:
    """The part of the replies from each tenth of the nodes."""
    last = ", ".join(f"{method} {100 * use.participation[-1]:.1f} %" for method, use in uses.items())
    with drawing(f"Line chart of the share of replies by the speed of nodes; slowest tenth: {last}") as figure:
        axes = figure.axes[0]
        count = len(next(iter(uses.values())).participation)
        axes.axhline(100 / count, color=NEUTRAL, linewidth=1.0, linestyle=":")
        for method, use in uses.items():
            places = list(range(1, count + 1))
            draw_line(
                axes, places, [100 * part for part in use.participation], plot_styles(run.methods)[method], method
            )
        axes.set_ylim(bottom=0)
        axes.set_title("share of the replies [%]  (dotted: equal shares)")
        axes.set_xlabel("nodes by speed, in parts of equal size; 1 = fastest")
    return figure.markup
