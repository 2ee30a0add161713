"""The main result: one sentence and a table with one row per method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fedapps.registry.tasks import task_class, task_names
from fedapps.report.caveats import SIGNIFICANT, smallest_p
from fedapps.report.formats import counted, format_bytes, format_duration, format_number, format_p_value
from fedapps.report.gain import Gain, gain_of
from fedapps.report.metrics import CONTINUAL, bare, columns, describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import Metrics
from fedapps.report.rendering import render_section
from fedapps.report.results import final_metrics, leading_metric
from fedapps.report.run_data import RunData
from fedapps.report.tables import Cell, MetricTable, Row, best_methods
from fedapps.runs.tables import reference_label

_COLUMNS = 4
_BOLD = Markup("<b>{}</b>")
_COSTS = ("rounds", "sent to nodes", "sent by nodes", "time")

ORDER = 10


def section(run: RunData) -> Markup | None:
    """The headline and the table of final metrics; None if there are no results."""
    found, doubt = (varied_sentence(run), "") if run.comparison and run.comparison.varied else sentence(run)
    if not run.rounds and not run.summary:
        has_results = run.comparison and any(part.table for part in run.comparison.parts.values())
        return render_section("headline", sentence=found, doubt=doubt) if has_results else None
    final = final_metrics(run)
    leading = leading_metric(run)
    names = columns(name for values in final.values() for name in values)
    first = [leading.name] if leading else []
    first += [name for name in names if bare(name) in CONTINUAL]
    first += task_class(run.task).headline if run.task in task_names() else ()
    names = [*dict.fromkeys(name for name in first if name in names), *(name for name in names if name not in first)]
    return render_section(
        "headline",
        sentence=found,
        doubt=doubt,
        main=_table(run, final, names[:_COLUMNS], costs=True),
        all=_table(run, final, names, costs=False) if len(names) > _COLUMNS else None,
        references=bool(run.references),
        guarantees=[(method, of.privacy) for method, of in (run.summary or {}).items() if of.privacy],
    )


def sentence(run: RunData) -> tuple[Markup | str, str]:
    """The main result as one sentence of markup, and a note on its significance over seeds; empty for a run."""
    leading = leading_metric(run)
    if leading is None:
        return f"{_rounds(run)}, no evaluation yet.", ""
    values = _values(run, leading.name)
    if gain := gain_of(run, leading, values):
        return _gain(run, gain), _doubt(run, leading.name, gain.method, gain.alone)
    best = leading.best(values)
    if best is None:
        found = Markup(", ").join(_BOLD.format(method) + f" {format_number(value)}" for method, value in values.items())
        label = leading.label[:1].upper() + leading.label[1:]
        return Markup("{}: {}.").format(label, found) if found else f"{_rounds(run)}.", ""
    others = {method: value for method, value in values.items() if method != best}
    runner = leading.best(others) or next(iter(others))
    word = "lowest" if leading.better < 0 else "highest"
    ahead = Markup("<b>{}</b> has the {} {}: <b>{}</b>").format(best, word, leading.label, format_number(values[best]))
    behind = f"{_margin(values[best], values[runner])} {runner} ({format_number(values[runner])}){_basis(run)}."
    return ahead + behind, _doubt(run, leading.name, best, runner)


def _gain(run: RunData, gain: Gain) -> Markup:
    """The best federated method beside the best one whose nodes train alone."""
    value, other = gain.values
    nothing = "The federation gains nothing here. " if gain.sign <= 0 else ""
    found = Markup("{}<b>{}</b>: {} <b>{}</b>").format(nothing, gain.method, gain.metric.label, format_number(value))
    way = _share(value, other) if gain.sign else "the same as"
    against = f"{way} training alone ({gain.alone}: {format_number(other)})"
    better = [
        f"{place} {count} of {total} {units}"
        for place, units, (count, total) in (("on", "nodes", gain.nodes), ("in", "seeds", gain.seeds))
        if total > 1
    ]
    where = f"; better {' and '.join(better)}" if better else ""
    return found + f", {against}{_basis(run)}{where}."


def varied_sentence(run: RunData) -> Markup | str:
    """The method that is best at most values of a varied key, as one sentence of markup."""
    leading = leading_metric(run)
    if leading is None or run.comparison is None or run.comparison.varied is None:
        return ""
    key, values = run.comparison.varied.key, run.comparison.varied.values
    tables = [part.complete for _, part in values]
    found = [leading.best({m: row[leading.name].mean for m, row in t.items() if leading.name in row}) for t in tables]
    wins = Counter(method for method in found if method)
    if not wins:
        return f"{leading.label} at {len(values)} values of {key}."
    (best, times), *_ = wins.most_common(1)
    word = "lowest" if leading.better < 0 else "highest"
    return _BOLD.format(best) + f" has the {word} {leading.label} at {times} of {len(values)} values of {key}."


def _basis(run: RunData) -> str:
    if run.comparison:
        return f", the mean of {run.comparison.seeds} seeds" if run.comparison.seeds > 1 else ""
    return "" if run.finished else " so far"


def _doubt(run: RunData, metric: str, best: str, other: str) -> str:
    """The interval of the difference over seeds, and whether the paired test finds it significant."""
    for test in run.comparison.tests if run.comparison else ():
        if bare(test.metric) != bare(metric) or {test.a, test.b} != {best, other}:
            continue
        if test.seeds == 1:
            return "One seed does not show whether this is more than noise."
        low, high = (test.low, test.high) if test.a == best else (-test.high, -test.low)
        found = f"The difference is {format_number(low)} to {format_number(high)} (95\N{NO-BREAK SPACE}% interval)."
        if test.p_holm < SIGNIFICANT:
            return found
        over = f"paired test over {test.seeds} seeds, p = {format_p_value(test.p_holm)}"
        least = format_p_value(smallest_p(test.seeds))
        return f"{found} It is not significant ({over}; the smallest possible p is {least} before correction)."
    return ""


def _values(run: RunData, name: str) -> dict[str, float]:
    if run.comparison:
        table = run.comparison.complete
        return {method: row[name].mean for method, row in table.items() if name in row}
    return {method: row[name] for method, row in final_metrics(run).items() if name in row}


def _rounds(run: RunData) -> str:
    count = max((record.round for record in run.rounds), default=0)
    return counted(count, "round")


def _margin(best: float, other: float) -> str:
    change = 100 * (best - other) / abs(other) if other else 0.0
    if not abs(change) >= 0.05:
        return ", slightly better than"
    return f", {_share(best, other)}" if abs(change) < 100 else ", better than"


def _share(value: float, other: float) -> str:
    """How far a value is above or below another: in per cent, if that is a readable number."""
    way = "below" if value < other else "above"
    percent = 100 * abs(value - other) / abs(other) if other else 0.0
    if not 0.05 <= percent < 1000:
        return way
    return f"{percent:.{0 if percent >= 10 else 1}f}\N{NO-BREAK SPACE}% {way}"


def _table(run: RunData, final: Mapping[str, Metrics], names: Sequence[str], *, costs: bool) -> MetricTable:
    styles = plot_styles(run.methods)
    metrics = [describe(name) for name in names]
    best = best_methods(metrics, final)
    rows = []
    for method in run.methods:
        values = final.get(method, {})
        cells = [Cell(values.get(name), best=best[name] == method) for name in names]
        rows.append(Row(method, cells, styles[method], _costs(run, method) if costs else ()))
    for reference, values in run.references.items():
        cells = [Cell(values.get(name)) for name in names]
        rows.append(Row(reference_label(reference), cells, more=["–"] * len(_COSTS) if costs else ()))
    return MetricTable(metrics, rows, _COSTS if costs else ())


def _costs(run: RunData, method: str) -> list[str]:
    summary = (run.summary or {}).get(method)
    if summary:
        costs = (summary.rounds, summary.bytes_down, summary.bytes_up, summary.seconds)
    else:
        records = run.of(method)
        costs = (
            max((r.round for r in records), default=0),
            sum(r.bytes_down for r in records),
            sum(r.bytes_up for r in records),
            sum(r.seconds for r in records),
        )
    return [str(costs[0]), format_bytes(costs[1]), format_bytes(costs[2]), format_duration(costs[3])]
