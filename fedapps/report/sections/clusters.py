"""Cluster models compared with the global model, for methods that have both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from textwrap import fill

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedapps.base.errors import listed
from fedapps.base.report.figures import draw_line, drawing
from fedapps.base.report.metrics import INK, SHARED, Metric, plot_styles
from fedapps.base.report.numbers import format_number
from fedapps.report.run_data import RunData

from . import section_of

_NAMED = 8
_OTHERS = "#9ca3af"
_WHOLE = "global model"
_LISTED = 6
Line = dict[int, float]


@dataclass(frozen=True)
class Clusters:
    """Results of a method in each evaluated round; all metrics are means over nodes.

    Attributes
    ----------
    lines : dict of str to Line
        By cluster (largest first), the metric of the cluster model on the nodes of the cluster.
    global_lines : dict of str to Line
        By cluster, the metric of the global model on the same nodes.
    shared : Line
        The metric of the global model on all nodes.
    unassigned : mapping
        By round, the number of nodes without a cluster.
    averaged : tuple of int
        Rounds after which the clusters were averaged.
    """

    lines: dict[str, Line]
    global_lines: dict[str, Line]
    shared: Line
    unassigned: Mapping[int, int]
    averaged: tuple[int, ...]


def clusters(run: RunData) -> Markup | None:
    """One figure per method whose nodes report both models; None if there is none."""
    metric = run.leading_in_rounds()
    if metric is None:
        return None
    by_method = {method: of for method in run.methods if (of := clusters_of(run, method, metric.name))}
    if not by_method:
        return None
    return section_of(
        "clusters",
        averaged=any(of.averaged for of in by_method.values()),
        methods=[(_sentence(method, of, metric), _figure(method, of, metric)) for method, of in by_method.items()],
    )


def clusters_of(run: RunData, method: str, metric: str) -> Clusters | None:
    """The cluster results of a method; None if no node reports both models."""
    values: dict[str, dict[int, list[float]]] = {}
    of_global: dict[str, dict[int, list[float]]] = {}
    shared: dict[int, list[float]] = {}
    unassigned = Counter[int]()
    for record in run.nodes:
        of_cluster, of_all = (record.numbers.get(name, math.nan) for name in (metric, SHARED + metric))
        if record.method != method or record.phase != "evaluate" or not math.isfinite(of_all):
            continue
        shared.setdefault(record.round, []).append(of_all)
        if not record.cluster:
            unassigned[record.round] += 1
        elif math.isfinite(of_cluster):
            values.setdefault(record.cluster, {}).setdefault(record.round, []).append(of_cluster)
            of_global.setdefault(record.cluster, {}).setdefault(record.round, []).append(of_all)
    if not values:
        return None
    order = sorted(values, key=lambda label: (-sum(map(len, values[label].values())), label))
    return Clusters(
        lines={label: _means(values[label]) for label in order},
        global_lines={label: _means(of_global[label]) for label in order},
        shared=_means(shared),
        unassigned=unassigned,
        averaged=tuple(sorted(record.round for record in run.of(method) if record.strategy.averaged)),
    )


def _means(values: dict[int, list[float]]) -> Line:
    return {at: fmean(values[at]) for at in sorted(values)}


def _sentence(method: str, clusters: Clusters, metric: Metric) -> str:
    last = max(clusters.shared)
    measured = [label for label, line in clusters.lines.items() if last in line]
    ends = [clusters.lines[label][last] for label in measured]
    when = f"after round {last}" + (" (clusters were just averaged)" if last in clusters.averaged else "")
    sentence = f"{method}, {when}: {metric.label} is {format_number(clusters.shared[last])} with the global model"
    if ends:
        reach = dict.fromkeys([format_number(min(ends)), format_number(max(ends))])
        sentence += f" and {' to '.join(reach)} with the cluster models"
    if ends and metric.better:
        ahead = sum(
            metric.better * (clusters.lines[label][last] - clusters.global_lines[label][last]) > 0 for label in measured
        )
        sentence += f"; {ahead} of {len(ends)} cluster models are better than the global model on their own nodes"
    if count := clusters.unassigned.get(last, 0):
        sentence += f"; {count} node{' has' if count == 1 else 's have'} no cluster yet"
    return f"{sentence}. {_averaging(clusters.averaged)}"


def _averaging(rounds: Sequence[int]) -> str:
    """A sentence that says when the clusters were averaged."""
    if not rounds:
        return "Clusters were never averaged."
    gaps = {after - before for before, after in pairwise(rounds)}
    if len(rounds) > 2 and len(gaps) == 1 and (gap := gaps.pop()) == rounds[0]:
        return f"Clusters were averaged {'every round' if gap == 1 else f'every {gap} rounds'}."
    return f"Clusters were averaged after round{'s' if len(rounds) > 1 else ''} {listed(rounds, _LISTED)}."


def _figure(method: str, clusters: Clusters, metric: Metric) -> Markup:
    last = max(clusters.shared)
    ends = ", ".join(f"{label} {format_number(line[max(line)])}" for label, line in clusters.lines.items())
    alt = (
        f"Line chart of {metric.axis} over rounds under {method}; final values: {ends}; "
        f"global model {format_number(clusters.shared[last])}"
    )
    styles = plot_styles(list(clusters.lines)[:_NAMED])
    with drawing(alt, width=7.6, height=3.6) as figure:
        axes = figure.axes[0]
        for at in clusters.averaged:
            axes.axvline(at, color="#d1d5db", linewidth=1.0, zorder=0)
        axes.plot(*_points(clusters.shared), "o-", color=INK, linewidth=3.4, markersize=6, label=_WHOLE)
        for label, line in clusters.lines.items():
            if label in styles:
                draw_line(axes, *_points(line), styles[label], label)
                axes.lines[-1].set_label(label)
            else:
                axes.plot(*_points(line), color=_OTHERS, linewidth=0.7, zorder=1)
        _key(axes, clusters)
        axes.set_title(f"{method}: {metric.title}")
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure.markup


def _points(line: Line) -> tuple[list[int], list[float]]:
    return list(line), list(line.values())


def _cluster_name(label: str) -> str:
    return f"cluster {label}" if label.isdecimal() else label


def _key(axes: Axes, clusters: Clusters) -> None:
    """A legend beside the figure, in the order of the final values."""
    lines = {**clusters.lines, _WHOLE: clusters.shared}
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(zip(handles, labels, strict=True), key=lambda entry: -lines[entry[1]][max(lines[entry[1]])])
    if (further := len(lines) - len(order)) > 0:
        order.append((Line2D([], [], color=_OTHERS, linewidth=0.7), f"{further} other clusters"))
    handles, labels = [handle for handle, _ in order], [fill(_cluster_name(label), 22) for _, label in order]
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
