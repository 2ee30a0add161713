"""Comparisons: means over seeds, the paper's numbers, its claims and tests; results by value, new node and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedapps.base.report.figures import dots_by_seed, drawing, limit_bands, mark
from fedapps.base.report.metrics import (
    ROUNDS_TO_TARGET,
    STEPS_PER_NODE,
    STEPS_TO_TARGET,
    Metric,
    bare,
    columns,
    describe,
    main_metric,
    plot_styles,
)
from fedapps.base.report.numbers import Estimate
from fedapps.base.report.tables import Table
from fedapps.report.comparison_tables import (
    about_claims,
    about_tests,
    claims_table,
    corrected_over,
    held_out_tables,
    metrics_table,
    tests_table,
)
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import (
    CheckedClaim,
    Compared,
    HeldOut,
    HeldOutMetric,
    PairedTest,
    Value,
    VariedPart,
    point_title,
)
from fedapps.runs.records import HeldOutNodes

from . import section_of

_WIDE_RANGE = 10
_COLUMNS = 5
#: A note, and the table that it belongs to.
Noted = tuple[str, Table]


def varied(run: RunData) -> Markup | None:
    """A figure of all methods for each of these metrics; None if no key was varied, or no method has all of its runs.

    The first varied key is the horizontal axis; each combination of the values of the others has its own figure, if
    some method has the metric there.
    """
    metric = run.leading_metric()
    if not run.comparison or not run.comparison.varied or metric is None:
        return None
    parts = run.comparison.varied
    key, *others = run.comparison.varied_keys
    groups: dict[str, list[VariedPart]] = {}
    for part in parts:
        groups.setdefault(point_title({other: part.point[other] for other in others}), []).append(part)
    drawn = [
        (each, group, title)
        for each in (metric, describe(ROUNDS_TO_TARGET), describe(STEPS_TO_TARGET))
        for title, group in groups.items()
        if any(each.name in row for part in group for row in part.complete.values())
    ]
    if not drawn:
        return None
    return section_of(
        "varied",
        key=key,
        seeds=max(part.seeds for part in parts),
        targets=any(each != metric for each, _, _ in drawn),
        styles=plot_styles(run.methods),
        figures=[_figure(run, key, group, each, title) for each, group, title in drawn],
    )


def _figure(run: RunData, key: str, parts: Sequence[VariedPart], metric: Metric, title: str) -> Markup:
    values = [part.point[key] for part in parts]
    positions = _positions(values)
    texts = dict(zip(positions, map(str, values), strict=True))
    lines = {}
    for method in run.methods:
        estimates = [part.complete.get(method, {}).get(metric.name) for part in parts]
        points = sorted((x, one.mean, one.half or 0.0) for x, one in zip(positions, estimates, strict=True) if one)
        if points:
            lines[method] = points
    means_of = "; ".join(
        f"{method} {', '.join(f'{mean:.4g}' for _, mean, _ in points)}" for method, points in lines.items()
    )
    heading = f"{metric.axis} against {key}{f', {title}' if title else ''}"
    with drawing(f"Line chart of {heading}: {means_of}") as figure:
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
        axes.set_xticks(positions, list(map(str, values)))
        axes.set_xticks([], minor=True)
        limit_bands(axes, drawn)
        axes.set_xlabel(key)
        axes.set_ylabel(metric.axis)
        axes.set_title(f"{metric.title}\n{title}" if title else metric.title)
    return figure.markup


def _positions(values: Sequence[Value]) -> list[float]:
    """The x coordinate of each value: the value if all are numbers, or else its index."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return numbers if len(numbers) == len(values) else [float(index) for index in range(len(values))]


@dataclass(frozen=True)
class _Part:
    """What is shown of a comparison, or of its part at one value of a varied key."""

    title: str
    main: Table
    more: Table | None
    claims: Noted | None
    tests: Noted | None
    other_tests: Noted | None
    notes: Sequence[str]


def comparison(run: RunData) -> Markup | None:
    """The tables of a comparison; None if the folder holds none."""
    compared = {title: part for title, part in (run.comparison.parts if run.comparison else {}).items() if part.table}
    if run.comparison is None or not compared:
        return None
    return section_of(
        "comparison",
        seeds=max(part.seeds for part in compared.values()),
        parts=[_part(run, title, part) for title, part in compared.items()],
        claims=_claims(run.comparison.claims) if run.comparison.varied else None,
        notes=run.comparison.notes if run.comparison.varied else (),
    )


def _part(run: RunData, title: str, compared: Compared) -> _Part:
    leading = run.leading_metric()
    names = columns((name for row in compared.table.values() for name in row), run.headline)
    names.sort(key=lambda name: leading is None or name != leading.name)
    budget = [name for name in names if name == STEPS_PER_NODE]
    others = [name for name in names if name != STEPS_PER_NODE]
    styles = plot_styles(run.methods)
    main = bare(leading.name) if leading else ""
    tests = [test for test in compared.tests if bare(test.metric) == main]
    return _Part(
        title,
        main=metrics_table(compared, [*others[:_COLUMNS], *budget], styles),
        more=metrics_table(compared, others[_COLUMNS:], styles) if others[_COLUMNS:] else None,
        claims=_claims(compared.claims),
        tests=_tests(tests),
        other_tests=_tests([test for test in compared.tests if test not in tests]),
        notes=compared.notes,
    )


def _claims(claims: Sequence[CheckedClaim]) -> Noted | None:
    return (about_claims(claims[0].difference.seeds), claims_table(claims)) if claims else None


def _tests(tests: Sequence[PairedTest]) -> Noted | None:
    if not tests:
        return None
    of_metric: dict[str, list[tuple[str, str]]] = {}
    for test in tests:
        of_metric.setdefault(test.metric, []).append((test.a, test.b))
    most = max(map(corrected_over, of_metric.values()))
    return about_tests(tests[0].difference.seeds, most), tests_table(tests)


def held_out(run: RunData) -> Markup | None:
    """A table for each main metric of the task; None if no node was held out."""
    if run.comparison:
        parts = {title: part.held_out for title, part in run.comparison.parts.items()}
    else:
        parts = {"": {name: _of_run(of.held_out) for name, of in run.summary.items() if of.held_out.nodes}}
    shown = {title: _tables(run, of_part) for title, of_part in parts.items() if of_part}
    if not shown:
        return None
    sizes = sorted({(of.nodes, of.epochs) for part in parts.values() for of in part.values()})
    return section_of("held_out", sizes=sizes, parts=shown)


def _tables(run: RunData, held_out: Mapping[str, HeldOut]) -> dict[str, Table]:
    measured = list(dict.fromkeys(name for of_method in held_out.values() for name in of_method.metrics))
    main = [bare(name) for name in run.headline]
    tested = (name for name in measured if bare(name) in main)  # not in trials, whose test data are withheld
    names = sorted(tested, key=lambda name: main.index(bare(name))) or measured[:1]
    methods = {method: of for method, of in held_out.items() if method in run.methods}
    return held_out_tables(methods, names, plot_styles(run.methods))


def _of_run(held_out: HeldOutNodes) -> HeldOut:
    """The means over nodes of a single seed."""
    return HeldOut(
        epochs=held_out.epochs,
        nodes=len(held_out.nodes),
        metrics={
            name: HeldOutMetric(
                shared=Estimate(held_out.shared[name]),
                adapted=Estimate(value),
                local=Estimate(held_out.local[name]),
                gain=Estimate(value - held_out.shared[name]),
                lead=Estimate(value - held_out.local[name]),
            )
            for name, value in held_out.adapted.items()
            if name in held_out.shared and name in held_out.local
        },
    )


def seeds(run: RunData) -> Markup | None:
    """A figure of the main metric by seed; None without runs of a comparison."""
    runs, styles = run.seed_metrics, plot_styles(run.methods)
    metric = main_metric(name for of_method in runs.values() for metrics in of_method.values() for name in metrics)
    if metric is None:
        return None
    return section_of("seeds", styles=styles, figures=[dots_by_seed(runs, styles, metric)])
