"""Comparison over seeds: means with their intervals, the paper's numbers, its claims and paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedapps.base.report.metrics import STEPS_PER_NODE, bare, columns
from fedapps.base.report.palette import plot_styles
from fedapps.base.report.tables import Table
from fedapps.report.caveats import about_claims, about_tests
from fedapps.report.comparison_tables import claims_table, metrics_table, tests_table
from fedapps.report.run_data import RunData
from fedapps.runs.comparisons import CheckedClaim, Compared, PairedTest

from . import section_of

_COLUMNS = 5

ORDER = 30

#: A note, and the table that it belongs to.
Noted = tuple[str, Table]


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


def section(run: RunData) -> Markup | None:
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
    names = columns(name for row in compared.table.values() for name in row)
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
    most = max(sum(test.metric == other.metric for other in tests) for test in tests)
    return about_tests(tests[0].difference.seeds, most), tests_table(tests)
