"""The main result: one sentence, which may state the gain of the federation, and a table with one row per method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from fedapps.base.report.metrics import CONTINUAL, Metric, bare, columns, describe, plot_styles
from fedapps.base.report.numbers import counted, format_bytes, format_duration, format_number, format_p_value
from fedapps.base.report.tables import Cell, Column, Table, best_methods, metric_columns, reference_label
from fedapps.methods.base import Role
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method
from fedapps.report.comparison_tables import SIGNIFICANT, smallest_p
from fedapps.report.run_data import RunData
from fedapps.runs.records import Metrics

from . import section_of

_COLUMNS = 4
_BOLD = Markup("<b>{}</b>")
_COSTS = ("rounds", "sent to nodes", "sent by nodes", "time")


@dataclass(frozen=True)
class Gain:
    """A federated method beside one whose nodes train alone.

    Attributes
    ----------
    metric : Metric
        The main metric of the run, whose direction is known.
    method, alone : str
        The best federated method, and the best one without a federation.
    values : tuple of float
        The metric of both, in this order: final values, or means over seeds.
    nodes : tuple of int
        The number of nodes on which ``method`` is better, and the number of nodes that both report. In a comparison,
        a node counts by its mean over the seeds.
    seeds : tuple of int
        The number of seeds in which ``method`` is better, and the number of seeds; (0, 0) in a run.
    """

    metric: Metric
    method: str
    alone: str
    values: tuple[float, float]
    nodes: tuple[int, int]
    seeds: tuple[int, int]

    @property
    def sign(self) -> int:
        """1 if the federated method is better, -1 if it is worse, 0 if both are equal."""
        difference = self.metric.better * (self.values[0] - self.values[1])
        return (difference > 0) - (difference < 0)


def gain_of(run: RunData, metric: Metric, values: Mapping[str, float]) -> Gain | None:
    """The gain in a metric; None without its direction, a federated method or a method whose nodes train alone.

    Parameters
    ----------
    run : RunData
    metric : Metric
    values : mapping
        The metric by method. Values that are not finite are left out.
    """
    finite = {method: value for method, value in values.items() if math.isfinite(value)}
    federated = [method for method in finite if role_of(run, method) == "federated"]
    alone = [method for method in finite if role_of(run, method) == "alone"]
    if not metric.better or not federated or not alone:
        return None
    best, baseline = (max(names, key=lambda name: metric.better * finite[name]) for names in (federated, alone))
    return Gain(
        metric,
        best,
        baseline,
        (finite[best], finite[baseline]),
        _nodes(run, metric, best, baseline),
        _seeds(run, metric, best, baseline),
    )


def role_of(run: RunData, method: str) -> Role:
    """The role of a method; "reference" if the method is unknown here, such as one of another package."""
    try:
        return build_method(read_expression(run.labels.get(method, method)), run.config).role
    except ValueError:
        return "reference"


def _nodes(run: RunData, metric: Metric, best: str, baseline: str) -> tuple[int, int]:
    first, second = (_of_nodes(run, metric, name) for name in (best, baseline))
    pairs = [(first[key], second[key]) for key in first.keys() & second.keys()]
    return _better(metric, [pair for pair in pairs if all(map(math.isfinite, pair))])


def _of_nodes(run: RunData, metric: Metric, method: str) -> Mapping[str, float]:
    """The metric by node: of its last evaluation, or in a comparison the mean over the seeds."""
    if run.comparison:
        return run.comparison.nodes.get(method, {}).get(bare(metric.name), {})
    evaluated = run.last_evaluations().get(method, {})
    return {key: node.numbers[metric.name] for key, node in evaluated.items() if metric.name in node.numbers}


def _seeds(run: RunData, metric: Metric, best: str, baseline: str) -> tuple[int, int]:
    runs = run.comparison.runs if run.comparison else {}
    first, second = (
        {seed: row[metric.name] for seed, row in runs.get(name, {}).items() if metric.name in row}
        for name in (best, baseline)
    )
    return _better(metric, [(first[seed], second[seed]) for seed in first.keys() & second.keys()])


def _better(metric: Metric, pairs: list[tuple[float, float]]) -> tuple[int, int]:
    return sum(metric.better * (a - b) > 0 for a, b in pairs), len(pairs)


def headline(run: RunData) -> Markup | None:
    """The headline and the table of final metrics; None if there are no results."""
    result, doubt = (varied_sentence(run), "") if run.comparison and run.comparison.varied else sentence(run)
    if not run.rounds and not run.summary:
        has_results = run.comparison and any(part.table for part in run.comparison.parts.values())
        return section_of("headline", sentence=result, doubt=doubt) if has_results else None
    final = run.final_metrics()
    leading = run.leading_metric()
    names = columns(name for values in final.values() for name in values)
    first = [leading.name] if leading else []
    first += [name for name in names if bare(name) in CONTINUAL]
    first += run.headline
    names = [*dict.fromkeys(name for name in first if name in names), *(name for name in names if name not in first)]
    return section_of(
        "headline",
        sentence=result,
        doubt=doubt,
        main=_table(run, final, names[:_COLUMNS], costs=True),
        all=_table(run, final, names, costs=False) if len(names) > _COLUMNS else None,
        references=bool(run.references),
        guarantees=[(method, of.privacy) for method, of in run.summary.items() if of.privacy],
    )


def sentence(run: RunData) -> tuple[Markup | str, str]:
    """The main result as one sentence of markup, and a note on its significance over seeds; empty for a run."""
    leading = run.leading_metric()
    if leading is None:
        return f"{_rounds(run)}, no evaluation yet.", ""
    values = _values(run, leading.name)
    if gain := gain_of(run, leading, values):
        return _gain(run, gain), _doubt(run, leading.name, gain.method, gain.alone)
    best = leading.best(values)
    if best is None:
        results = Markup(", ").join(
            _BOLD.format(method) + f" {format_number(value)}" for method, value in values.items()
        )
        label = leading.label[:1].upper() + leading.label[1:]
        return Markup("{}: {}.").format(label, results) if results else f"{_rounds(run)}.", ""
    others = {method: value for method, value in values.items() if method != best and math.isfinite(value)}
    runner = leading.best(others) or next(iter(others))
    word = "lowest" if leading.better < 0 else "highest"
    ahead = Markup("<b>{}</b> has the {} {}: <b>{}</b>").format(best, word, leading.label, format_number(values[best]))
    behind = f"{_margin(values[best], values[runner])} {runner} ({format_number(values[runner])}){_basis(run)}."
    return ahead + behind, _doubt(run, leading.name, best, runner)


def _gain(run: RunData, gain: Gain) -> Markup:
    """The best federated method beside the best one whose nodes train alone."""
    value, other = gain.values
    nothing = "The federation gains nothing here. " if gain.sign <= 0 else ""
    first = Markup("{}<b>{}</b>: {} <b>{}</b>").format(nothing, gain.method, gain.metric.label, format_number(value))
    way = _share(value, other) if gain.sign else "the same as"
    against = f"{way} training alone ({gain.alone}: {format_number(other)})"
    better = [
        f"{preposition} {count} of {total} {units}"
        for preposition, units, (count, total) in (("on", "nodes", gain.nodes), ("in", "seeds", gain.seeds))
        if total > 1
    ]
    where = f"; better {' and '.join(better)}" if better else ""
    return first + f", {against}{_basis(run)}{where}."


def varied_sentence(run: RunData) -> Markup | str:
    """The method that is best at most values of the varied keys, as one sentence of markup."""
    leading = run.leading_metric()
    if leading is None or run.comparison is None or not run.comparison.varied:
        return ""
    tables = [part.complete for part in run.comparison.varied]
    what = "values" if len(run.comparison.varied_keys) == 1 else "combinations"
    of_keys = f"{len(tables)} {what} of {' and '.join(run.comparison.varied_keys)}"
    bests = [leading.best({m: row[leading.name].mean for m, row in t.items() if leading.name in row}) for t in tables]
    wins = Counter(method for method in bests if method)
    if not wins:
        return f"{leading.label} at {of_keys}."
    times = max(wins.values())
    bests = [method for method, count in wins.items() if count == times]
    word, has = "lowest" if leading.better < 0 else "highest", "each have" if len(bests) > 1 else "has"
    named = Markup(" and ").join(map(_BOLD.format, bests))
    return named + f" {has} the {word} {leading.label} at {times} of {of_keys}."


def _basis(run: RunData) -> str:
    if run.comparison:
        return f", the mean of {run.comparison.seeds} seeds" if run.comparison.seeds > 1 else ""
    return "" if run.finished else " so far"


def _doubt(run: RunData, metric: str, best: str, other: str) -> str:
    """The interval of the difference over seeds, and whether the paired test finds it significant."""
    for test in run.comparison.tests if run.comparison else ():
        if bare(test.metric) != bare(metric) or {test.a, test.b} != {best, other}:
            continue
        gap = test.difference if test.a == best else test.difference.negated()
        if gap.low is None or gap.high is None or gap.p_holm is None:
            return "One seed does not show whether this is more than noise."
        interval = f"{format_number(gap.low)} to {format_number(gap.high)} (95\N{NO-BREAK SPACE}% interval)"
        if gap.p_holm < SIGNIFICANT:
            return f"The difference is {interval}."
        over = f"paired test over {gap.seeds} seeds, p = {format_p_value(gap.p_holm)}"
        least = format_p_value(smallest_p(gap.seeds))
        return (
            f"The difference is {interval}. It is not significant "
            f"({over}; the smallest possible p is {least} before correction)."
        )
    return ""


def _values(run: RunData, name: str) -> dict[str, float]:
    if run.comparison:
        table = run.comparison.complete
        return {method: row[name].mean for method, row in table.items() if name in row}
    return {method: row[name] for method, row in run.final_metrics().items() if name in row}


def _rounds(run: RunData) -> str:
    count = max((record.round for record in run.rounds), default=0)
    return counted(count, "round")


def _margin(best: float, other: float) -> str:
    if best == other:
        return ", the same as"
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


def _table(run: RunData, final: Mapping[str, Metrics], names: Sequence[str], *, costs: bool) -> Table:
    metrics = [describe(name) for name in names]
    best = best_methods(metrics, final)
    further = _COSTS if costs else ()
    rows: list[list[str | Cell]] = []
    for method in run.methods:
        values = final.get(method, {})
        cells = [Cell.of(values.get(name), best=best[name] == method) for name in names]
        rows.append([method, *cells, *(_costs(run, method) if costs else ())])
    for reference, values in run.references.items():
        cells = [Cell.of(values.get(name)) for name in names]
        rows.append([reference_label(reference), *cells, *("–" for _ in further)])
    return Table([*metric_columns(metrics), *map(Column, further)], rows, plot_styles(run.methods))


def _costs(run: RunData, method: str) -> list[str]:
    if summary := run.summary.get(method):
        last, down, up, seconds = summary.rounds, summary.bytes_down, summary.bytes_up, summary.seconds
    else:
        records = run.of(method)
        last = max((r.round for r in records), default=0)
        down, up = sum(r.bytes_down for r in records), sum(r.bytes_up for r in records)
        seconds = sum(r.seconds for r in records)
    rounds = last - run.begun.get(method, 0)
    return [str(rounds), format_bytes(down), format_bytes(up), format_duration(seconds)]
