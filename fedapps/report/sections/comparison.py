"""Comparison over seeds: means with their intervals, the paper's numbers, its claims and paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedapps.report.metrics import STEPS_PER_NODE, bare, columns, describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import CheckedClaim, Comparison, PairedTest, Spread
from fedapps.report.rendering import render_section
from fedapps.report.results import leading_metric
from fedapps.report.run_data import RunData
from fedapps.report.tables import Cell, MetricTable, Row, best_methods
from fedapps.runs.tables import reference_label

_COLUMNS = 5
_DRIVEN = "closed_loop.mean_cost"

ORDER = 30


@dataclass(frozen=True)
class _Part:
    """What is shown of a comparison, or of its part at one value of a varied key."""

    title: str
    main: MetricTable
    more: MetricTable | None
    claims: Sequence[CheckedClaim]
    tests: Sequence[PairedTest]
    other_tests: Sequence[PairedTest]
    notes: Sequence[str]


def section(run: RunData) -> Markup | None:
    """The tables of a comparison; None if the folder holds none."""
    compared = {title: part for title, part in (run.comparison.parts if run.comparison else {}).items() if part.table}
    if run.comparison is None or not compared:
        return None
    return render_section(
        "comparison",
        seeds=max(found.seeds for found in compared.values()),
        parts=[_part(run, title, found) for title, found in compared.items()],
        claims=run.comparison.claims if run.comparison.varied else (),
        notes=run.comparison.notes if run.comparison.varied else (),
    )


def _part(run: RunData, title: str, found: Comparison) -> _Part:
    leading = leading_metric(run)
    names = columns(name for row in found.table.values() for name in row)
    names.sort(key=lambda name: leading is None or name != leading.name)
    budget = [name for name in names if name == STEPS_PER_NODE]
    others = [name for name in names if name != STEPS_PER_NODE]
    shown = (bare(leading.name) if leading else "", _DRIVEN)
    tests = [test for test in found.tests if bare(test.metric) in shown]
    return _Part(
        title,
        main=_table(run, found, [*others[:_COLUMNS], *budget]),
        more=_table(run, found, others[_COLUMNS:]) if others[_COLUMNS:] else None,
        claims=found.claims,
        tests=tests,
        other_tests=[test for test in found.tests if test not in tests],
        notes=found.notes,
    )


def _table(run: RunData, found: Comparison, names: Sequence[str]) -> MetricTable:
    styles = plot_styles(run.methods)
    metrics = [describe(name) for name in names]
    means = {method: {name: spread.mean for name, spread in row.items()} for method, row in found.complete.items()}
    best = best_methods(metrics, means)

    def cells(row: Mapping[str, Spread], method: str = "") -> list[Cell]:
        paper = found.paper.get(method, {})
        return [
            Cell(
                row[name].mean if name in row else None,
                best=bool(method) and best[name] == method,
                half=row[name].half if name in row else None,
                paper=paper.get(name),
                counted=row[name].counted if name in row else "",
            )
            for name in names
        ]

    rows = [Row(name, cells(found.table[name], name), styles[name]) for name in run.methods if name in found.table]
    rows += [Row(reference_label(name), cells(row)) for name, row in found.references.items()]
    for method, row in found.paper.items():
        if method not in found.table:
            rows.append(Row(f"{method} (paper)", [Cell(None, paper=row.get(name), missing="") for name in names]))
    return MetricTable(metrics, rows)
