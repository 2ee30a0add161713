"""The main result: one sentence and a table with one row per method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape

from fedapps.registry.tasks import profiles_class, task_names
from fedapps.report.caveats import SIGNIFICANT, smallest_p
from fedapps.report.formats import format_bytes, format_duration, format_number, format_p_value
from fedapps.report.gain import Gain, gain_of
from fedapps.report.markup import details, swatch, table
from fedapps.report.metrics import CONTINUAL, Metric, bare, columns, describe
from fedapps.report.palette import plot_styles
from fedapps.report.records import Metrics
from fedapps.report.results import final_metrics, leading_metric
from fedapps.report.run_data import RunData
from fedapps.runs.tables import reference_label

_COLUMNS = 4
_NOTE = " References are floors and ceilings that need no training."
_COSTS = ("rounds", "sent to nodes", "sent by nodes", "time")

ORDER = 10


def section(run: RunData) -> str | None:
    """The headline and the table of final metrics; None if there are no results."""
    if not run.rounds and not run.summary:
        has_results = run.comparison and any(part.table for part in run.comparison.parts.values())
        return f'<section id="result">{_top(run)}</section>' if has_results else None
    final = final_metrics(run)
    leading = leading_metric(run)
    names = columns(name for values in final.values() for name in values)
    first = [leading.name] if leading else []
    first += [name for name in names if bare(name) in CONTINUAL]
    first += profiles_class(run.task).headline if run.task in task_names() else ()
    names = [*dict.fromkeys(name for name in first if name in names), *(name for name in names if name not in first)]
    parts = [
        '<section id="result">',
        _top(run),
        _table(run, final, [describe(name) for name in names[:_COLUMNS]], costs=True),
        f'<p class="note">★ marks the best value of each column.{_NOTE if run.references else ""}</p>',
        *(f'<p class="note">{escape(method)}: {escape(promised)}.</p>' for method, promised in _guarantees(run)),
    ]
    if len(names) > _COLUMNS:
        parts.append(details("All final metrics", _table(run, final, [describe(n) for n in names], costs=False)))
    return "\n".join([*parts, "</section>"])


def _top(run: RunData) -> str:
    """The main result, and below it how sure it is."""
    if run.comparison and run.comparison.varied:
        return f'<p class="headline">{varied_sentence(run)}</p>'
    found, doubt = sentence(run)
    return f'<p class="headline">{found}</p>' + (f'<p class="note">{doubt}</p>' if doubt else "")


def sentence(run: RunData) -> tuple[str, str]:
    """The main result as one sentence of markup, and a note on its significance over seeds; empty for a run."""
    leading = leading_metric(run)
    if leading is None:
        return f"{_rounds(run)}, no evaluation yet.", ""
    values = _values(run, leading.name)
    if gain := gain_of(run, leading, values):
        return _gain(run, gain), _doubt(run, leading.name, gain.method, gain.alone)
    best = leading.best(values)
    if best is None:
        found = ", ".join(f"<b>{escape(method)}</b> {format_number(value)}" for method, value in values.items())
        label = leading.label[:1].upper() + leading.label[1:]
        return f"{escape(label)}: {found}." if found else f"{_rounds(run)}.", ""
    others = {method: value for method, value in values.items() if method != best}
    runner = leading.best(others) or next(iter(others))
    word = "lowest" if leading.better < 0 else "highest"
    return (
        f"<b>{escape(best)}</b> has the {word} {escape(leading.label)}: <b>{format_number(values[best])}</b>"
        f"{_margin(values[best], values[runner])} {escape(runner)} ({format_number(values[runner])})"
        f"{_basis(run)}."
    ), _doubt(run, leading.name, best, runner)


def _gain(run: RunData, gain: Gain) -> str:
    """The best federated method beside the best one whose nodes train alone."""
    value, other = gain.values
    found = f"<b>{escape(gain.method)}</b>: {escape(gain.metric.label)} <b>{format_number(value)}</b>"
    if gain.sign <= 0:
        found = f"The federation gains nothing here. {found}"
    way = _share(value, other) if gain.sign else "the same as"
    against = f"{way} training alone ({escape(gain.alone)}: {format_number(other)})"
    better = [
        f"{place} {count} of {total} {units}"
        for place, units, (count, total) in (("on", "nodes", gain.nodes), ("in", "seeds", gain.seeds))
        if total > 1
    ]
    where = f"; better {' and '.join(better)}" if better else ""
    return f"{found}, {against}{_basis(run)}{where}."


def varied_sentence(run: RunData) -> str:
    """The method that is best at most values of a varied key, as one sentence of markup."""
    leading = leading_metric(run)
    if leading is None or run.comparison is None or run.comparison.varied is None:
        return ""
    key, values = run.comparison.varied.key, run.comparison.varied.values
    tables = [part.table for _, part in values]
    found = [leading.best({m: row[leading.name].mean for m, row in t.items() if leading.name in row}) for t in tables]
    wins = Counter(method for method in found if method)
    if not wins:
        return f"{escape(leading.label)} at {len(values)} values of {escape(key)}."
    (best, times), *_ = wins.most_common(1)
    word = "lowest" if leading.better < 0 else "highest"
    return (
        f"<b>{escape(best)}</b> has the {word} {escape(leading.label)} at {times} of {len(values)} values "
        f"of {escape(key)}."
    )


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


def _guarantees(run: RunData) -> list[tuple[str, str]]:
    """The methods with differential privacy, each with its guarantee."""
    return [(method, found.privacy) for method, found in (run.summary or {}).items() if found.privacy]


def _values(run: RunData, name: str) -> dict[str, float]:
    if run.comparison:
        table = run.comparison.table
        return {method: row[name].mean for method, row in table.items() if name in row}
    return {method: row[name] for method, row in final_metrics(run).items() if name in row}


def _rounds(run: RunData) -> str:
    count = max((record.round for record in run.rounds), default=0)
    return f"{count} round{'' if count == 1 else 's'}"


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


def _table(run: RunData, final: dict[str, Metrics], metrics: list[Metric], *, costs: bool) -> str:
    styles = plot_styles(run.methods)
    best = {}
    for metric in metrics:
        found = {method: row[metric.name] for method, row in final.items() if metric.name in row}
        best[metric.name] = metric.best(found)
    rows = []
    for method in run.methods:
        cells = [f"{swatch(styles[method])}{escape(method)}"]
        for metric in metrics:
            cells.append(_cell(final, metric, method, best[metric.name] == method))
        rows.append(cells + (_costs(run, method) if costs else []))
    for name in run.references:
        cells = [escape(reference_label(name)), *(_cell(run.references, metric, name, False) for metric in metrics)]
        rows.append(cells + (["–"] * len(_COSTS) if costs else []))
    head = ["method", *map(_title, metrics), *(_COSTS if costs else ())]
    return table(head, rows, caption="Final metrics of each method")


def _title(metric: Metric) -> str:
    hint = f"<small>{metric.direction}</small>" if metric.better else ""
    return escape(metric.axis) + hint


def _cell(final: Mapping[str, Metrics], metric: Metric, method: str, best: bool) -> str:
    value = final.get(method, {}).get(metric.name)
    shown = "–" if value is None else format_number(value)
    return f'<b class="best">★ {shown}</b>' if best else shown


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
