"""Simulated time: the main metric against it, who was waited for, and which nodes are left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from fedapps.base.report.figures import draw_line, drawing
from fedapps.base.report.metrics import NEUTRAL, ROUNDS_TO_TARGET, TIME_TO_TARGET, Metric, plot_styles
from fedapps.base.report.numbers import format_duration, format_number
from fedapps.base.report.tables import Table, text_columns
from fedapps.report.run_data import PARTS, RunData, by_speed, slowest
from fedapps.runs.records import NodeRecord

from . import section_of
from .curves import metric_against

_UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))


def simulated_time(run: RunData) -> Markup | None:
    """Figures and a table of methods; None without simulated time."""
    metric = run.leading_in_rounds()
    uses = {method: use for method in run.methods if (use := fleet_use(run, method, metric))}
    if not uses:
        return None
    words = ("simulated time", "simulated time", "simulated time")
    clocks = metric_against(run, metric, lambda records: [r.clock for r in records], _unit, words) if metric else None
    figures = [clocks, _busy(run, uses), _participation(run, uses)]
    return section_of(
        "simulated_time",
        styles=plot_styles(run.methods),
        figures=[figure for figure in figures if figure],
        uses=_table(run, uses, metric),
    )


def _unit(longest: float) -> tuple[str, float]:
    return next(((unit, scale) for unit, scale in _UNITS if longest >= 2 * scale), _UNITS[-1])


def _table(run: RunData, uses: Mapping[str, FleetUse], metric: Metric | None) -> Table:
    target = any(TIME_TO_TARGET in of.final for of in run.summary.values())
    of_metric = [f"{metric.axis}, mean of {nodes}" for nodes in ("nodes", "the slowest tenth")] if metric else []
    to_target = ["to the target", "rounds to the target"] if target else []
    rows = []
    for method, use in uses.items():
        final = run.summary[method].final if method in run.summary else {}
        reached = TIME_TO_TARGET in final
        reach = (
            [format_duration(final[TIME_TO_TARGET]), f"{final[ROUNDS_TO_TARGET]:.0f}"]
            if reached
            else ["not reached", "–"]
        )
        rows.append(
            [
                method,
                format_duration(use.seconds),
                *(reach if target else ()),
                f"{100 * mean_of(use.busy.values()):.0f} %",
                format_number(use.staleness) if math.isfinite(use.staleness) else "–",
                f"{use.most_stale:.0f}",
                *([format_number(use.everyone), format_number(use.slowest)] if metric else []),
            ]
        )
    head = ["method", "simulated time", *to_target, "nodes busy", "mean staleness", "largest staleness", *of_metric]
    return Table(text_columns(head), rows, plot_styles(run.methods))


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
            parts = list(range(1, count + 1))
            draw_line(axes, parts, [100 * part for part in use.participation], plot_styles(run.methods)[method], method)
        axes.set_ylim(bottom=0)
        axes.set_title("share of the replies [%]  (dotted: equal shares)")
        axes.set_xlabel("nodes by speed, in parts of equal size; 1 = fastest")
    return figure.markup


def mean_of(values: Iterable[float]) -> float:
    """The mean of the finite values; NaN if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


@dataclass(frozen=True)
class FleetUse:
    """How a method used the fleet.

    Attributes
    ----------
    seconds : float
        Simulated time from the start of the run until the end of the last round.
    busy : mapping of str to float
        By node, the part of this time between a message to train and its reply, from 0 to 1. Replies that came too
        late count; those that never came do not.
    participation : sequence of float
        The part of the accepted replies from each tenth of the nodes, the fastest first.
    staleness, most_stale : float
        Mean and maximum of the server steps since the arrays that a node had received.
    slowest, everyone : float
        The main metric of the last evaluation, as the mean over the slowest tenth of the nodes, and over all; NaN
        without an evaluation.
    """

    seconds: float
    busy: Mapping[str, float]
    participation: Sequence[float]
    staleness: float
    most_stale: float
    slowest: float
    everyone: float


def fleet_use(run: RunData, method: str, metric: Metric | None) -> FleetUse | None:
    """How a method used the fleet; ``None`` if the run has no simulated time."""
    clock = max((record.clock for record in run.of(method) if math.isfinite(record.clock)), default=0.0)
    seconds = clock - run.since.get(method, 0.0)
    if seconds <= 0 or not run.speeds:
        return None
    trained = [node for node in run.nodes if (node.method, node.phase) == (method, "train")]
    busy = dict.fromkeys(by_speed(run.speeds), 0.0)
    replies = dict.fromkeys(busy, 0)
    for node in trained:
        if node.node in busy:
            replies[node.node] += 1
            busy[node.node] += node.seconds / seconds if math.isfinite(node.seconds) else 0.0
    for late in (late for record in run.of(method) for late in record.dropped):
        if late.node in busy and math.isfinite(late.seconds):
            busy[late.node] += late.seconds / seconds
    last = _last(run.nodes, method)
    values = {node: of.numbers.get(metric.name, math.nan) for node, of in last.items()} if metric else {}
    return FleetUse(
        seconds,
        {node: min(part, 1.0) for node, part in busy.items()},
        _parts(list(replies.values())),
        mean_of(node.staleness for node in trained),
        max((node.staleness for node in trained), default=0.0),
        mean_of(values.get(node, math.nan) for node in slowest(run.speeds)),
        mean_of(values.values()),
    )


def _last(nodes: Iterable[NodeRecord], method: str) -> dict[str, NodeRecord]:
    """By node, its reply to the last evaluation."""
    evaluated = [node for node in nodes if (node.method, node.phase) == (method, "evaluate")]
    last = max((node.round for node in evaluated), default=0)
    return {node.node: node for node in evaluated if node.round == last}


def _parts(replies: Sequence[int]) -> list[float]:
    """The part of the replies in each of ten parts of the fleet; of a small fleet, that of each node."""
    count = min(PARTS, len(replies))
    edges = [round(part * len(replies) / count) for part in range(count + 1)]
    total = max(sum(replies), 1)
    return [sum(replies[edges[part] : edges[part + 1]]) / total for part in range(count)]
