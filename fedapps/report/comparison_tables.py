"""The tables of a comparison, and all of them as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from fedapps.base.report.estimates import Estimate
from fedapps.base.report.formats import format_p_value, number
from fedapps.base.report.metrics import columns, describe
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
from fedapps.runs.comparisons import CheckedClaim, Compared, Comparison, HeldOut, PairedTest

from .caveats import SIGNIFICANT, about_claims, about_tests

#: Wider tables in plain text are split into several, one below the other.
_WIDTH = 120
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
    rows: list[Row] = []
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
    rows: list[Row] = [
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
        metric, rows = describe(name), list[Row]()
        for method, of_method in held_out.items():
            if of_metric := of_method.metrics.get(name):
                models = {"shared": of_metric.shared, "adapted": of_metric.adapted, "local": of_metric.local}
                best = metric.best({model: one.mean for model, one in models.items()})
                cells = [Cell(one, best=model == best) for model, one in models.items()]
                rows.append([method, *cells, Cell(of_metric.gain, limits=True), Cell(of_metric.lead, limits=True)])
        columns = [Column(f"{model} {metric.axis}", metric.direction) for model in ("shared", "adapted", "local")]
        differences = [Column(f"adapted − {other}") for other in ("shared", "local")]
        tables[metric.axis] = Table([Column("method", is_text=True), *columns, *differences], rows, styles)
    return tables


def comparison_text(comparison: Comparison) -> str:
    """A comparison as text: means over seeds, paired tests and the paper's claims.

    If a key was varied, each of its values has separate tables. Numbers in brackets are the paper's. References follow
    the methods. Metrics of single stages are omitted.
    """
    if comparison.varied is None:
        return _part_text(comparison)
    texts = [f"{title}\n\n{_part_text(part)}" for title, part in comparison.parts.items()]
    return "\n\n\n".join([*texts, *_notes(comparison), *_claims(comparison.claims)])


def _part_text(part: Compared) -> str:
    names = columns(name for row in part.table.values() for name in row)
    texts = [metrics_table(part, names, {}).text(_WIDTH), *_notes(part)]
    tests: dict[str, list[PairedTest]] = {}  # by the note that stands above the table of those that share it
    for metric in dict.fromkeys(test.metric for test in part.tests):
        of_metric = [test for test in part.tests if test.metric == metric]
        tests.setdefault(_about(of_metric), []).extend(of_metric)
    texts += [f"{note}\n{tests_table(noted).text()}" for note, noted in tests.items()]
    return "\n\n".join([*texts, *_held_out(part.held_out), *_claims(part.claims)])


def _notes(part: Compared) -> list[str]:
    return ["\n".join(fill(note, _WIDTH) for note in part.notes)] if part.notes else []


def _claims(claims: Sequence[CheckedClaim]) -> list[str]:
    if not claims:
        return []
    return [f"{fill(about_claims(claims[0].difference.seeds), _WIDTH)}\n{claims_table(claims).text()}"]


def _about(tests: Sequence[PairedTest]) -> str:
    """What the tests of a metric compare, and the caveat."""
    which = scheme([(test.a, test.b) for test in tests])
    caveat = fill(about_tests(tests[0].difference.seeds, len(tests)), _WIDTH)
    return "\n".join([*([which] if which else []), caveat])


def _held_out(held_out: Mapping[str, HeldOut]) -> list[str]:
    if not held_out:
        return []
    names = dict.fromkeys(name for of_method in held_out.values() for name in of_method.metrics)
    tables = [table.text() for table in held_out_tables(held_out, list(names), {}).values()]
    sizes = ", ".join(f"{n} nodes, {e} epochs" for n, e in sorted({(of.nodes, of.epochs) for of in held_out.values()}))
    return [f"nodes that took no part in the rounds: {sizes}; ± and ranges are 95 % intervals over seeds", *tables]


def scheme(pairs: Sequence[tuple[str, str]]) -> str:
    """A sentence that says which pairs were tested; empty if all pairs were."""
    methods = {method for pair in pairs for method in pair}
    if len(pairs) == len(methods) * (len(methods) - 1) // 2:
        return ""
    best, *first = dict.fromkeys(a for a, _ in pairs)
    reference = f" and against {first[0]} (named first)" if first else ", which is also the one named first"
    return f"every method against {best} (best mean){reference}; Holm's correction over {len(pairs)} tests"
