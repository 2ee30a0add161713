"""Learning curves, and the results of every node.

Curves: the main metrics of the task, then other measures of quality, and numbers of steps last. Those of a comparison
are means over seeds with a band for their 95 % confidence intervals. Where the evaluated nodes change between rounds,
the round is marked, and a dotted line is the mean over the nodes of every evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedapps.base.report.figures import draw_line, drawing, in_lines, limit_bands, mark
from fedapps.base.report.metrics import NEUTRAL, Metric, PlotStyle, columns, describe, plot_styles
from fedapps.base.report.numbers import counted
from fedapps.report.evaluated import notes, paired_curve
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import Comparison, Course
from fedapps.runs.records import RoundRecord

from . import section_of

_OPEN = 2
_MOST = 12
_WIDE_RANGE = 30
_MOST_RINGS = 8
_ROOM = 55  # letters of method names that fit side by side
_NARROW, _WIDE = 5.2, 7.6
_LETTER = 0.075  # the width of one below an axis, in inches
_SHORTEST, _UPRIGHT = 11, 24  # letters in a line of a name that lies, at least, and of one that stands upright


class _Pairs(NamedTuple):
    """The rounds in which the evaluated nodes of a method change, and the mean over the nodes of every evaluation."""

    changed: Sequence[int]
    rounds: Sequence[int]
    values: Sequence[float]


def curves(run: RunData) -> Markup | None:
    """Up to 12 panels, two of them open; None if no round has metrics."""
    if run.comparison:
        return _over_seeds(run, run.comparison)
    wanted = [("evaluate", name) for name in _names(run, "evaluate")]
    wanted += [("train", name) for name in _names(run, "train") if not name.endswith("_parameters")]
    main = run.main_metrics()
    wanted.sort(key=lambda item: _rank(main, *item))
    panels = [panel for phase, name in wanted if (panel := _panel(run, phase, name, kept=name in main))][:_MOST]
    if not panels:
        return None
    drawn = [figure for figure, _ in panels]
    remarks = dict.fromkeys(note for _, of_panel in panels[:_OPEN] for note in of_panel)
    return section_of(
        "curves", styles=plot_styles(run.methods), shown=drawn[:_OPEN], more=drawn[_OPEN:], notes=list(remarks)
    )


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


def _panel(run: RunData, phase: str, name: str, *, kept: bool) -> tuple[Markup, list[str]] | None:
    """The curves of a metric, and notes on changes of the evaluated nodes.

    None if there is no curve of two rounds or, unless the metric is ``kept``, if none changes.
    """
    metric = describe(name)
    curves = {method: run.curve(method, lambda r: _values(r, phase).get(name)) for method in run.methods}
    curves = {method: points for method, points in curves.items() if any(map(math.isfinite, points[1]))}
    if not any(len(rounds) > 1 for rounds, *_ in curves.values()):
        return None
    finite = [y for _, points in curves.values() for y in points if math.isfinite(y)]
    if not kept and len(finite) > 1 and min(finite) == max(finite):
        return None
    title = metric.axis if phase == "evaluate" else f"training: {metric.axis}"
    heading = metric.title if phase == "evaluate" else title
    changed = {}
    if phase == "evaluate":
        pairs_of = {method: paired_curve(run, method, name) for method in curves}
        changed = {method: paired for method, paired in pairs_of.items() if paired}
    pairs = {method: _Pairs([c.round for c in of.changes], of.rounds, of.values) for method, of in changed.items()}
    return _drawn(title, heading, curves, plot_styles(run.methods), pairs=pairs), notes(changed, len(run.methods))


def _over_seeds(run: RunData, comparison: Comparison) -> Markup | None:
    styles = plot_styles(run.methods)
    drawn, leading, remarks = [], run.leading_metric(), dict[str, None]()
    for title, part in comparison.parts.items():
        names = dict.fromkeys(name for courses in part.curves.values() for name in courses)
        for name in sorted(names, key=lambda name: leading is None or name != leading.name):
            courses = {method: of[name] for method, of in part.curves.items() if name in of and of[name].rounds}
            lines = {method: (course.rounds, course.mean) for method, course in courses.items()}
            bands = {method: course.half for method, course in courses.items() if not any(map(math.isnan, course.half))}
            if any(len(course.rounds) > 1 for course in courses.values()):
                metric = describe(name)
                heading = f"{metric.title}\n{title}" if title else metric.title
                changed = {method: course for method, course in courses.items() if course.changed}
                pairs = {m: _Pairs(c.changed, c.paired.rounds, c.paired.mean) for m, c in changed.items()}
                drawn.append(_drawn(metric.axis, heading, lines, styles, bands, pairs))
                if len(drawn) <= _OPEN:
                    remarks |= {_remark(method, course, title): None for method, course in changed.items()}
    if not drawn:
        return None
    seeds = max(part.seeds for part in comparison.parts.values())
    return section_of(
        "curves", styles=styles, shown=drawn[:_OPEN], more=drawn[_OPEN:_MOST], seeds=seeds, notes=list(remarks)
    )


def _remark(method: str, course: Course, title: str) -> str:
    """A note on the rounds of a comparison in which the evaluated nodes of some seeds change."""
    rounds = f"{counted(len(course.changed), 'round')}, first {course.changed[0]}"
    paired = (
        "Dotted: in each seed, the mean over its nodes of every evaluation"
        if course.paired.rounds
        else "No curve over the same nodes is drawn, because not every seed has one"
    )
    return f"{method}{f', {title}' if title else ''}: the evaluated nodes change in {rounds}. {paired}."


def _drawn(
    title: str,
    heading: str,
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    styles: Mapping[str, PlotStyle],
    bands: Mapping[str, Sequence[float]] = MappingProxyType({}),
    pairs: Mapping[str, _Pairs] = MappingProxyType({}),
) -> Markup:
    """A figure of curves, with bands of these half widths around them, and changes of the evaluated nodes."""
    finite = [y for _, points in curves.values() for y in points if math.isfinite(y)]
    ends = ", ".join(f"{method} {points[1][-1]:.4g}" for method, points in curves.items())
    with drawing(f"Line chart of {title} over rounds; final values: {ends}") as figure:
        axes = figure.axes[0]
        for method, (x, y) in curves.items():
            draw_line(axes, x, y, styles[method], method)
            if method in bands:
                low, high = np.subtract(y, bands[method]), np.add(y, bands[method])
                mark(axes.fill_between(x, low, high, color=styles[method].colour, alpha=0.12, linewidth=0), method)
        for method, of in pairs.items():
            _draw_pairs(axes, curves[method], of, styles[method], method)
        if min(finite) > 0 and max(finite) / min(finite) > _WIDE_RANGE:
            axes.set_yscale("log")
        if bands:
            limit_bands(axes, finite)
        axes.set_title(heading)
        axes.set_xlabel("round")
        axes.set_ylabel(title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure.markup


def _draw_pairs(
    axes: Axes, line: tuple[Sequence[int], Sequence[float]], pairs: _Pairs, style: PlotStyle, name: str
) -> None:
    """A ring at each round with other nodes than before, unless they are many, and the dotted paired curve."""
    at = dict(zip(*line, strict=True))
    rings = [number for number in pairs.changed if number in at]
    if rings and len(rings) <= _MOST_RINGS:
        ring = axes.scatter(rings, [at[r] for r in rings], s=90, facecolors="none", edgecolors=style.colour, zorder=4)
        mark(ring, name)
    if pairs.rounds:
        (dotted,) = axes.plot(pairs.rounds, pairs.values, color=style.colour, linestyle=(0, (1, 1.6)), linewidth=1.6)
        mark(dotted, name, at=[f"{number}, same nodes" for number in pairs.rounds])


def metric_against(
    run: RunData,
    metric: Metric,
    amounts: Callable[[Sequence[RoundRecord]], Iterable[float]],
    unit_of: Callable[[float], tuple[str, float]],
    words: tuple[str, str, str],
) -> Markup | None:
    """A figure of a metric against what was spent until the end of each round, by method; None for a single point.

    Parameters
    ----------
    run : RunData
    metric : Metric
    amounts : callable
        Returns what was spent until the end of each round of a method.
    unit_of : callable
        Returns the unit for the largest amount, and its size.
    words : tuple of str
        The amount in the alternative text, in the title and at the axis.
    """
    curves = {}
    for method in run.methods:
        records = run.of(method)
        values = [record.evaluate.get(metric.name, math.nan) for record in records]
        pairs = zip(amounts(records), values, strict=True)
        points = [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]
        if points and points[-1][0] > 0:
            curves[method] = points
    if sum(map(len, curves.values())) < 2:
        return None
    unit, scale = unit_of(max(points[-1][0] for points in curves.values()))
    with drawing(f"Line chart of {metric.axis} against {words[0]}, by method") as figure:
        axes = figure.axes[0]
        for method, points in curves.items():
            x, y = [amount / scale for amount, _ in points], [value for _, value in points]
            draw_line(axes, x, y, plot_styles(run.methods)[method], method)
        axes.set_title(f"{metric.axis} against {words[1]}")
        axes.set_xlabel(f"{words[2]} [{unit}]")
    return figure.markup


def spread(run: RunData) -> Markup | None:
    """The main metric that differs between the nodes of most methods, at the last evaluation; None if none differs.

    Nodes with the same model report the same value where all of them are tested on the same examples.
    """
    if run.comparison:
        leading = run.leading_metric()
        by_metric = _of_comparison(run.comparison, leading.name if leading else "")
    else:
        by_metric = [(describe(name), _node_values(run, name)) for name in run.main_metrics()]
    by_metric = [(metric, values) for metric, values in by_metric if any(map(_differ, values.values()))]
    if not by_metric:
        return None
    metric, values = max(by_metric, key=lambda item: sum(map(_differ, item[1].values())))
    styles = plot_styles(run.methods)
    methods = list(values)
    nodes = sorted({node for row in values.values() for node in row})
    ranges = ", ".join(
        f"{method} from {min(row.values()):.4g} to {max(row.values()):.4g}" for method, row in values.items()
    )
    width = _WIDE if sum(map(len, methods)) > _ROOM else min(_WIDE, max(_NARROW, 1.2 + 0.8 * len(methods)))
    labels, is_upright = _tick_labels(methods, int((width - 0.9) / len(methods) / _LETTER))
    lines = [line for of_name in labels for line in of_name]
    below = _LETTER * max(map(len, lines)) if is_upright else 0.17 * max(map(len, labels))
    with drawing(f"Dot plot of {metric.axis} by node and method: {ranges}", width=width, height=3.1 + below) as figure:
        axes = figure.axes[0]
        for node in nodes:
            line = [values[method].get(node, math.nan) for method in methods]
            (drawn,) = axes.plot(range(len(methods)), line, color="#9ca3af", linewidth=0.7, alpha=0.7, zorder=1)
            mark(drawn, node, at=methods)
        for index, method in enumerate(methods):
            row = np.array(list(values[method].values()))
            axes.plot([index - 0.28, index + 0.28], [np.median(row)] * 2, color=NEUTRAL, linewidth=2.4, zorder=2)
            axes.scatter(
                np.full(row.size, index),
                row,
                s=34,
                color=styles[method].colour,
                marker=styles[method].marker,
                edgecolors="white",
                linewidths=0.6,
                zorder=3,
            )
        axes.set_xticks(range(len(methods)), list(map("\n".join, labels)), rotation=90 * is_upright)
        axes.set_xlim(-0.5, len(methods) - 0.5)
        axes.set_title(metric.title)
    seeds = run.comparison.seeds if run.comparison else 0
    return section_of(
        "spread", nodes=len(nodes), figure=figure.markup, methods=len(methods), seeds=seeds, wide=width > _NARROW
    )


def _tick_labels(names: Sequence[str], letters: int) -> tuple[list[list[str]], bool]:
    """Split names into lines for the ticks of an axis; also return whether the labels must be upright.

    A label that is not upright has room for ``letters`` characters a line.
    """
    is_upright = letters < _SHORTEST and max(map(len, names)) > letters
    room = _UPRIGHT if is_upright else letters
    return [in_lines(name, room) for name in names], is_upright


def _of_comparison(comparison: Comparison, leading: str) -> list[tuple[Metric, dict[str, dict[str, float]]]]:
    """The means over seeds by metric, method and node; those of the main metric stand first."""
    names = dict.fromkeys(name for of_method in comparison.nodes.values() for name in of_method)
    return [
        (describe(name), {method: dict(of[name]) for method, of in comparison.nodes.items() if name in of})
        for name in sorted(names, key=lambda name: name != leading)
    ]


def _node_values(run: RunData, metric: str) -> dict[str, dict[str, float]]:
    """The finite values by method and node."""
    values: dict[str, dict[str, float]] = {}
    for method, evaluated in run.last_evaluations().items():
        numbers = {key: node.numbers.get(metric, math.nan) for key, node in evaluated.items()}
        finite = {key: value for key, value in numbers.items() if math.isfinite(value)}
        if finite:
            values[method] = finite
    return values


def _differ(row: dict[str, float]) -> bool:
    return min(row.values()) < max(row.values())
