"""Comparison over seeds: means, standard deviations, the paper's numbers, its claims and paired tests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from html import escape

from fedapps.report.caveats import SIGNIFICANT, about_claims, about_tests
from fedapps.report.formats import format_number, format_p_value
from fedapps.report.markup import details, render_section, swatch, table
from fedapps.report.metrics import STEPS_PER_NODE, Metric, bare, columns, describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import CheckedClaim, Comparison, PairedTest, Spread
from fedapps.report.results import leading_metric
from fedapps.report.run_data import RunData
from fedapps.runs.tables import reference_label

_COLUMNS = 5
_DRIVEN = "closed_loop.mean_cost"

ORDER = 30


def section(run: RunData) -> str | None:
    """The tables of a comparison; None if the folder holds none."""
    compared = {title: part for title, part in (run.comparison.parts if run.comparison else {}).items() if part.table}
    if not compared:
        return None
    parts = []
    for title, found in compared.items():
        parts += [details(title, *_part(run, found))] if title else _part(run, found)
    if run.comparison and run.comparison.varied and run.comparison.claims:
        parts += ["<h3>Claims of the paper</h3>", _claims(run.comparison.claims)]
    count = max(found.seeds for found in compared.values())
    seeds = f"{count} seed{'s' if count > 1 else ''}. " if count else ""
    lead = f"{seeds}Mean ± standard deviation over seeds. ★ marks the best mean; grey numbers are the paper's."
    return render_section("comparison", "Comparison over seeds", *parts, lead=lead)


def _part(run: RunData, found: Comparison) -> list[str]:
    leading = leading_metric(run)
    names = columns(name for row in found.table.values() for name in row)
    names.sort(key=lambda name: leading is None or name != leading.name)
    budget = [name for name in names if name == STEPS_PER_NODE]
    others = [name for name in names if name != STEPS_PER_NODE]
    parts = [_table(run, found, [*others[:_COLUMNS], *budget])]
    if others[_COLUMNS:]:
        parts.append(details("More metrics", _table(run, found, others[_COLUMNS:])))
    if found.claims:
        parts += ["<h3>Claims of the paper</h3>", _claims(found.claims)]
    if found.tests:
        parts.append("<h3>Paired tests</h3>")
        first = [test for test in found.tests if bare(test.metric) in (bare(leading.name) if leading else "", _DRIVEN)]
        rest = [test for test in found.tests if test not in first]
        parts.append(_tests(first) if first else "")
        parts.append(details("Tests on other metrics", _tests(rest)) if rest else "")
    return parts


def _table(run: RunData, found: Comparison, names: Sequence[str]) -> str:
    styles = plot_styles(run.methods)
    metrics = [describe(name) for name in names]
    best = {}
    for metric in metrics:
        means = {method: row[metric.name].mean for method, row in found.table.items() if metric.name in row}
        best[metric.name] = metric.best(means)
    rows = [
        [
            f"{swatch(styles[method])}{escape(method)}",
            *(_cell(found, metric, method, best[metric.name] == method) for metric in metrics),
        ]
        for method in run.methods
        if method in found.table
    ]
    for name, row in found.references.items():
        rows.append([escape(reference_label(name)), *(_mean(row[m.name]) if m.name in row else "–" for m in metrics)])
    for method in found.paper:
        if method not in found.table:
            rows.append([f"{escape(method)} (paper)", *(_paper(found, metric, method) for metric in metrics)])
    head = ["method", *(f"{escape(m.axis)}<small>{m.direction}</small>" for m in metrics)]
    return table(head, rows, caption="Mean and standard deviation of each method over seeds")


def _cell(found: Comparison, metric: Metric, method: str, best: bool) -> str:
    spread = found.table[method].get(metric.name)
    if spread is None:
        return "–" + _paper(found, metric, method)
    return _mean(spread, best) + _paper(found, metric, method)


def _mean(spread: Spread, best: bool = False) -> str:
    mean = f'<b class="best">★ {format_number(spread.mean)}</b>' if best else format_number(spread.mean)
    return f"{mean} <small>± {format_number(spread.std, 2)}</small>"


def _paper(found: Comparison, metric: Metric, method: str) -> str:
    values = found.paper.get(method, {})
    return f'<span class="paper">{format_number(values[metric.name])}</span>' if metric.name in values else ""


def _claims(claims: Sequence[CheckedClaim]) -> str:
    head = ["claim", "metric", "methods", "difference<small>first − second</small>", "interval", "claimed", "verdict"]
    rows = [
        [
            escape(claim.line),
            escape(describe(claim.metric).axis),
            f"{escape(claim.method)} against {escape(claim.rival)}",
            format_number(claim.difference),
            _interval(claim),
            f"&gt; {format_number(claim.by)}",
            claim.verdict if claim.verdict == "holds" else f"<b>{escape(claim.verdict)}</b>",
        ]
        for claim in claims
    ]
    note = f'<p class="note">{escape(about_claims(claims[0].seeds))}</p>'
    return note + table(head, rows, texts=3, caption="Claims of the paper and the differences found here")


def _tests(tests: Sequence[PairedTest]) -> str:
    head = [
        "metric",
        "methods",
        "mean difference<small>first − second</small>",
        "95 % interval",
        "p",
        "p, Holm-corrected<small>bold below 0.05</small>",
        "nodes<small>lower : higher</small>",
    ]
    rows = [
        [
            escape(describe(test.metric).axis),
            f"{escape(test.a)} against {escape(test.b)}",
            format_number(test.mean_difference),
            _interval(test),
            format_p_value(test.p),
            f"<b>{format_p_value(test.p_holm)}</b>" if test.p_holm < SIGNIFICANT else format_p_value(test.p_holm),
            f"{test.nodes_lower} : {test.nodes_higher}" if test.nodes_lower + test.nodes_higher else "–",
        ]
        for test in tests
    ]
    together = max(Counter(test.metric for test in tests).values())
    note = f'<p class="note">{escape(about_tests(tests[0].seeds, together))}</p>'
    return note + table(head, rows, texts=2, caption="Paired tests between methods over seeds")


def _interval(found: PairedTest | CheckedClaim) -> str:
    return "–" if math.isnan(found.low) else f"{format_number(found.low)} to {format_number(found.high)}"
