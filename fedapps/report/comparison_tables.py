"""The tables of a comparison, for its page and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedapps.base.report.estimates import Estimate
from fedapps.base.report.formats import format_p_value, number
from fedapps.base.report.metrics import describe
from fedapps.base.report.palette import PlotStyle
from fedapps.base.report.tables import (
    Cell,
    Column,
    Row,
    Strong,
    Table,
    best_methods,
    metric_columns,
    reference_label,
)
from fedapps.runs.comparisons import CheckedClaim, Compared, HeldOut, PairedTest

from .caveats import SIGNIFICANT

_DIFFERENCE = Column("difference", "first − second, 95 % interval")


def metrics_table(compared: Compared, names: Sequence[str], styles: Mapping[str, PlotStyle]) -> Table:
    """The estimate of each method in these metrics beside the paper's numbers, and the references below them."""
    metrics = [describe(name) for name in names]
    means = {method: {name: one.mean for name, one in row.items()} for method, row in compared.complete.items()}
    best = best_methods(metrics, means)

    def cells(label: str, row: Mapping[str, Estimate], method: str = "", missing: str = "–") -> Row:
        paper = compared.paper.get(method, {})
        numbers = [Cell(row.get(n), best=best[n] == method != "", paper=paper.get(n), missing=missing) for n in names]
        return [label, *numbers]

    rows = [cells(method, row, method) for method, row in compared.table.items()]
    rows += [cells(reference_label(name), row) for name, row in compared.references.items()]
    rows += [
        cells(f"{method} (paper)", {}, method, missing="") for method in compared.paper if method not in compared.table
    ]
    return Table(metric_columns(metrics), rows, styles)


def tests_table(tests: Sequence[PairedTest]) -> Table:
    """The paired tests, one on each row; p-values below :data:`SIGNIFICANT` are emphasised."""
    columns = [
        Column("metric", is_text=True), Column("methods", is_text=True), _DIFFERENCE, Column("p"),
        Column("p, Holm-corrected", "bold below 0.05"), Column("nodes lower : higher"),
    ]  # fmt: skip
    rows = []
    for test in tests:
        p, p_holm = (
            value if value is not None else float("nan") for value in (test.difference.p, test.difference.p_holm)
        )
        corrected = format_p_value(p_holm, decimals=4)
        rows.append(
            [
                describe(test.metric).axis,
                f"{test.a} against {test.b}",
                Cell(test.difference, limits=True, group=test.metric),
                format_p_value(p, decimals=4),
                Strong(corrected) if p_holm < SIGNIFICANT else corrected,
                f"{test.nodes_lower} : {test.nodes_higher}" if test.nodes_lower + test.nodes_higher else "–",
            ]
        )
    return Table(columns, rows)


def claims_table(claims: Sequence[CheckedClaim]) -> Table:
    """The claims of the paper with their verdicts, of which those that do not hold are emphasised."""
    columns = [
        *(Column(title, is_text=True) for title in ("claim", "metric", "methods")),
        _DIFFERENCE,
        Column("claimed"),
        Column("verdict"),
    ]
    rows = [
        [
            claim.claim,
            describe(claim.metric).axis,
            f"{claim.method} against {claim.rival}",
            Cell(claim.difference, limits=True, group=claim.metric),
            f"> {number(claim.by)}",
            claim.verdict if claim.verdict == "holds" else Strong(claim.verdict),
        ]
        for claim in claims
    ]
    return Table(columns, rows)


def held_out_tables(
    held_out: Mapping[str, HeldOut], metrics: Sequence[str], styles: Mapping[str, PlotStyle]
) -> dict[str, Table]:
    """By the axis of each metric, the three models of held-out nodes and the differences between them."""
    tables = {}
    for name in metrics:
        metric, rows = describe(name), []
        for method, of_method in held_out.items():
            if found := of_method.metrics.get(name):
                models = {"shared": found.shared, "adapted": found.adapted, "local": found.local}
                best = metric.best({model: one.mean for model, one in models.items()})
                cells = [Cell(one, best=model == best) for model, one in models.items()]
                rows.append([method, *cells, Cell(found.gain, limits=True), Cell(found.lead, limits=True)])
        columns = [Column(f"{model} {metric.axis}", metric.direction) for model in ("shared", "adapted", "local")]
        differences = [Column(f"adapted − {other}") for other in ("shared", "local")]
        tables[metric.axis] = Table([Column("method", is_text=True), *columns, *differences], rows, styles)
    return tables
