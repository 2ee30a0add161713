"""The models of clusters against the global one, for methods that have both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedapps.report.figures import drawing
from fedapps.report.markup import panels
from fedapps.report.markup import section as block
from fedapps.report.metrics import SHARED, Metric, number
from fedapps.report.palette import INK, looks
from fedapps.report.results import leading_in_rounds
from fedapps.report.run_data import RunData

from .curves import draw_line

_NAMED = 8
_OTHERS = "#9ca3af"
_WHOLE = "global model"
_LISTED = 6

Line = dict[int, float]

ORDER = 80


@dataclass(frozen=True)
class Clusters:
    """What a method came to in each evaluated round: means over nodes.

    Attributes:
        lines: by cluster, the one with most nodes first, the metric of its model on its nodes.
        instead: by cluster, the metric of the global model on the same nodes.
        shared: the metric of the global model on all nodes.
        outside: how many nodes are in no cluster yet.
        averaged: the rounds after which clusters were averaged.
    """

    lines: dict[str, Line]
    instead: dict[str, Line]
    shared: Line
    outside: Mapping[int, int]
    averaged: tuple[int, ...]


def section(run: RunData) -> str | None:
    """A figure for each method whose nodes report both models; None where none do."""
    metric = leading_in_rounds(run)
    if metric is None:
        return None
    found = {method: of for method in run.methods if (of := clusters_of(run, method, metric.name))}
    if not found:
        return None
    lead = (
        "Each node is evaluated with the model of its cluster and with the global one. Coloured lines are means over "
        "the nodes of a cluster with the cluster's model, the thick dark one that over all nodes with the global model."
    )
    if any(of.averaged for of in found.values()):
        lead += " Light vertical lines: rounds at whose end clusters were averaged."
    parts = []
    for method, of in found.items():
        said = f'<p class="lead">{escape(_said(method, of, metric))}</p>'
        parts += [said, panels([_figure(method, of, metric)], wide=True)]
    return block("clusters", "Clusters against the global model", *parts, lead=lead)


def clusters_of(run: RunData, method: str, metric: str) -> Clusters | None:
    """The clusters of a method, None where no node reports both models."""
    values: dict[str, dict[int, list[float]]] = {}
    instead: dict[str, dict[int, list[float]]] = {}
    shared: dict[int, list[float]] = {}
    outside = Counter[int]()
    for record in run.nodes:
        of_cluster, of_all = (record.metrics.get(name, math.nan) for name in (metric, SHARED + metric))
        if record.method != method or record.phase != "evaluate" or not math.isfinite(of_all):
            continue
        shared.setdefault(record.round, []).append(of_all)
        if not record.cluster:
            outside[record.round] += 1
        elif math.isfinite(of_cluster):
            values.setdefault(record.cluster, {}).setdefault(record.round, []).append(of_cluster)
            instead.setdefault(record.cluster, {}).setdefault(record.round, []).append(of_all)
    if not values:
        return None
    order = sorted(values, key=lambda label: (-sum(map(len, values[label].values())), label))
    return Clusters(
        lines={label: _means(values[label]) for label in order},
        instead={label: _means(instead[label]) for label in order},
        shared=_means(shared),
        outside=outside,
        averaged=tuple(sorted(record.round for record in run.of(method) if record.averaged)),
    )


def _means(values: dict[int, list[float]]) -> Line:
    return {at: fmean(values[at]) for at in sorted(values)}


def _said(method: str, found: Clusters, metric: Metric) -> str:
    last = max(found.shared)
    there = [label for label, line in found.lines.items() if last in line]
    ends = [found.lines[label][last] for label in there]
    when = f"after round {last}" + (", when clusters had just been averaged" if last in found.averaged else "")
    sentence = f"{method}, {when}: {metric.label} is {number(found.shared[last])} with the global model"
    if ends:
        reach = dict.fromkeys([number(min(ends)), number(max(ends))])
        sentence += f", {' to '.join(reach)} with the models of clusters"
    if ends and metric.better:
        ahead = sum(metric.better * (found.lines[label][last] - found.instead[label][last]) > 0 for label in there)
        sentence += f"; {ahead} of {len(ends)} do better on their own nodes than the global one"
    if count := found.outside.get(last, 0):
        sentence += f"; {count} of the nodes {'is' if count == 1 else 'are'} in no cluster yet"
    return f"{sentence}. {_averaging(found.averaged)}"


def _averaging(rounds: Sequence[int]) -> str:
    """When clusters were averaged, in a sentence."""
    if not rounds:
        return "Clusters were never averaged."
    gaps = {after - before for before, after in pairwise(rounds)}
    if len(rounds) > 2 and len(gaps) == 1 and (gap := gaps.pop()) == rounds[0]:
        return f"Clusters were averaged {'every round' if gap == 1 else f'every {gap} rounds'}."
    listed = ", ".join(map(str, rounds[:_LISTED])) + (f" and {len(rounds) - _LISTED} more" if rounds[_LISTED:] else "")
    return f"Clusters were averaged at the end of round{'s' if len(rounds) > 1 else ''} {listed}."


def _figure(method: str, found: Clusters, metric: Metric) -> str:
    last = max(found.shared)
    ends = ", ".join(f"{label} {number(line[max(line)])}" for label, line in found.lines.items())
    alt = (
        f"Line chart of {metric.axis} over rounds under {method}, at the end: {ends}; "
        f"the global model {number(found.shared[last])}"
    )
    look = looks(list(found.lines)[:_NAMED])
    with drawing(alt, width=7.6, height=3.6) as figure:
        axes = figure.axes[0]
        for at in found.averaged:
            axes.axvline(at, color="#d1d5db", linewidth=1.0, zorder=0)
        axes.plot(*_points(found.shared), "o-", color=INK, linewidth=3.4, markersize=6, label=_WHOLE)
        for label, line in found.lines.items():
            if label in look:
                draw_line(axes, *_points(line), look[label])
                axes.lines[-1].set_label(label)
            else:
                axes.plot(*_points(line), color=_OTHERS, linewidth=0.7, zorder=1)
        _key(axes, found)
        axes.set_title(method + f": {metric.axis}" + (f"  ({metric.direction})" if metric.better else ""))
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure.markup


def _points(line: Line) -> tuple[list[int], list[float]]:
    return list(line), list(line.values())


def _spoken(label: str) -> str:
    return f"cluster {label}" if label.isdecimal() else label


def _key(axes: Axes, found: Clusters) -> None:
    """Names beside the lines, in the order in which they end."""
    lines = {**found.lines, _WHOLE: found.shared}
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(zip(handles, labels, strict=True), key=lambda entry: -lines[entry[1]][max(lines[entry[1]])])
    if (further := len(lines) - len(order)) > 0:
        order.append((Line2D([], [], color=_OTHERS, linewidth=0.7), f"{further} further clusters"))
    handles, labels = [handle for handle, _ in order], [fill(_spoken(label), 22) for _, label in order]
    axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5)
