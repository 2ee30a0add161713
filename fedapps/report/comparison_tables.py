"""The tables of a comparison, all of them as plain text, and the sentences beside them.

The sentences say what p-values and verdicts mean, and which methods are worse than a floor: a prediction without
federated learning, such as the most frequent class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2
from textwrap import fill

from fedapps.base.report.metrics import PlotStyle, bare, columns, describe
from fedapps.base.report.numbers import Estimate, counted, format_p_value, number
from fedapps.base.report.tables import Cell, Column, Row, Strong, Table, best_methods, metric_columns, reference_label
from fedapps.registry.tasks import task_class, task_names
from fedapps.runs.comparisons import CheckedClaim, Compared, Comparison, HeldOut, PairedTest
from fedapps.runs.continual import measure_names

Values = Mapping[str, Mapping[str, float]]
#: A difference is called significant if its p-value is below this number.
SIGNIFICANT = 0.05
#: Up to this number of sign patterns (16 seeds), the sign-flip test uses all of them; beyond it, it draws this number.
SIGN_PATTERNS = 2**16
_ADVISED = 10
#: Wider tables in plain text are split into several, one below the other.
_WIDTH = 120
_DIFFERENCE = Column("difference", "first − second, 95 % interval")


def smallest_p(seeds: int) -> float:
    """The smallest p-value that the sign-flip test can give for this number of seeds, at least 1."""
    return max(2.0 ** (1 - seeds), 2 / (SIGN_PATTERNS + 1))


def needed_seeds(tests: int) -> int:
    """The number of seeds that a comparison with this number of tests needs, at least 10.

    With it, the smallest possible p-value of up to 1638 tests is below ``SIGNIFICANT`` after Holm's correction; that of
    more tests never is.
    """
    return max(_ADVISED, ceil(1 + log2(tests / SIGNIFICANT)))


def about_tests(seeds: int, tests: int) -> str:
    """The caveat beside a table of p-values.

    Parameters
    ----------
    seeds : int
        Number of seeds.
    tests : int
        Number of tests of a metric that Holm's correction covers (:func:`corrected_over`), perhaps more than there are.
    """
    least = smallest_p(seeds)
    corrected = min(1.0, least * tests)
    after = f" ({corrected:.3g} after Holm's correction over {tests} pairs of methods)" if tests > 1 else ""
    advice = f"; use {needed_seeds(tests)} seeds where a claim depends on it" if corrected >= SIGNIFICANT else ""
    return (
        f"Tests and intervals are paired over {counted(seeds, 'seed')}, not over nodes or sessions. "
        f"The smallest possible p is {least:.3g}{after}{advice}."
    )


def about_claims(seeds: int) -> str:
    """The note beside a table of claims."""
    if seeds < 2:
        return f"One seed gives no verdict. Use {_ADVISED} seeds where a claim depends on it."
    return (
        f"Intervals of the paired difference over {counted(seeds, 'seed')} have 95 % confidence, jointly over the "
        "methods that a claim names. A claim holds if its interval is above the claimed difference, fails if it is "
        "below, and is within noise otherwise."
    )


def below_floors(task: str, methods: Values, references: Values) -> list[str]:
    """A sentence for each main metric in which methods are worse than a floor of the task.

    Parameters
    ----------
    task : str
        Its name; a task that is not installed has no floors.
    methods, references : mapping
        Values by name and metric, with or without the prefix ``test.``.
    """
    if task not in task_names():
        return []
    known = task_class(task)
    main = dict.fromkeys(bare(name) for metric in known.headline for name in (measure_names(metric)[0], metric))
    ours, theirs = _bare(methods), _bare(references)
    sentences = []
    for metric in main:
        for floor in known.floors:
            limit = theirs.get(floor, {}).get(metric)
            worse = [name for name, row in ours.items() if _is_worse(metric, row.get(metric), limit)]
            if worse and limit is not None:
                named = ", ".join(f"{name} ({ours[name][metric]:.4g})" for name in worse)
                sentences.append(f"Worse than the reference {floor!r} ({limit:.4g}) in {metric}: {named}.")
    return sentences


def _bare(values: Values) -> dict[str, dict[str, float]]:
    return {name: {bare(metric): value for metric, value in row.items()} for name, row in values.items()}


def _is_worse(metric: str, value: float | None, floor: float | None) -> bool:
    """Whether both are known and the value is worse; metrics without a direction have no worse values."""
    if value is None or floor is None:
        return False
    return describe(metric).better * (value - floor) < 0


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

    If keys were varied, each combination of their values has separate tables. Numbers in brackets are the paper's.
    References follow the methods. Metrics of single stages are omitted.
    """
    if not comparison.varied:
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
    pairs = [(test.a, test.b) for test in tests]
    which, covered = scheme(pairs), corrected_over(pairs)
    caveat = fill(about_tests(tests[0].difference.seeds, covered), _WIDTH)
    return "\n".join([*([which] if which else []), caveat])


def _held_out(held_out: Mapping[str, HeldOut]) -> list[str]:
    if not held_out:
        return []
    names = dict.fromkeys(name for of_method in held_out.values() for name in of_method.metrics)
    tables = [table.text() for table in held_out_tables(held_out, list(names), {}).values()]
    sizes = ", ".join(f"{n} nodes, {e} epochs" for n, e in sorted({(of.nodes, of.epochs) for of in held_out.values()}))
    return [f"nodes that took no part in the rounds: {sizes}; ± and ranges are 95 % intervals over seeds", *tables]


def corrected_over(pairs: Sequence[tuple[str, str]]) -> int:
    """The number of pairs of methods that Holm's correction covers, of those that are tested.

    Against a baseline, these are the pairs. If the best method is in them, they are chosen from the data that then test
    them, and the correction covers all pairs of the methods.
    """
    return len(pairs) if len({other for _, other in pairs}) == 1 else _all_pairs(pairs)


def _all_pairs(pairs: Sequence[tuple[str, str]]) -> int:
    methods = {method for pair in pairs for method in pair}
    return len(methods) * (len(methods) - 1) // 2


def scheme(pairs: Sequence[tuple[str, str]]) -> str:
    """A sentence that says which pairs were tested; empty if all pairs were."""
    if len(pairs) == _all_pairs(pairs):
        return ""
    if len(others := {other for _, other in pairs}) == 1:
        tested = counted(len(pairs), "test")
        return f"every method against {others.pop()} (the baseline); Holm's correction over {tested}"
    best, *first = dict.fromkeys(a for a, _ in pairs)
    reference = f" and against {first[0]} (named first)" if first else ", which is also the one named first"
    covered = f"Holm's correction over all {corrected_over(pairs)} pairs, because the results choose the best one"
    return f"every method against {best} (best mean){reference}; {covered}"
