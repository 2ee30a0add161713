"""Queries on a run for the sections: main metric, final metrics, last evaluations and curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fedapps.registry.tasks import task_class, task_names

from .metrics import Metric, describe, main_metric
from .records import Metrics, NodeRecord, RoundRecord
from .run_data import RunData


def leading_metric(run: RunData) -> Metric | None:
    """The main metric of a run; None if nothing was evaluated."""
    names = [name for record in run.rounds for name in record.evaluate]
    names += [name for summary in (run.summary or {}).values() for name in summary.final]
    parts = run.comparison.parts.values() if run.comparison else ()
    names += [name for part in parts for row in part.table.values() for name in row]
    return _main(names)


def leading_in_rounds(run: RunData) -> Metric | None:
    """The main metric among those evaluated in rounds. It differs if the main metric exists only in the summary."""
    return _main([name for record in run.rounds for name in record.evaluate])


def main_metrics(run: RunData) -> list[str]:
    """The names of the metrics that were evaluated in rounds and matter most: the main one, then those of the task."""
    leading = leading_in_rounds(run)
    found = {name for record in run.rounds for name in record.evaluate}
    of_task = task_class(run.task).headline if run.task in task_names() else ()
    return list(dict.fromkeys([*([leading.name] if leading else []), *(name for name in of_task if name in found)]))


def final_metrics(run: RunData) -> dict[str, Metrics]:
    """The final metrics of each method: from the summary, or else from the last evaluation."""
    final: dict[str, Metrics] = {}
    for method in run.methods:
        evaluated = [record.evaluate for record in run.of(method) if record.evaluate]
        summary = (run.summary or {}).get(method)
        values = summary.final if summary and summary.final else evaluated[-1] if evaluated else {}
        if values:
            final[method] = values
    return final


def last_evaluations(run: RunData) -> dict[str, dict[str, NodeRecord]]:
    """The last evaluation of each node, by method and node."""
    last: dict[str, dict[str, NodeRecord]] = {}
    for record in run.nodes:
        if record.phase != "evaluate" or record.method not in run.methods:
            continue
        seen = last.setdefault(record.method, {})
        if record.node not in seen or seen[record.node].round <= record.round:
            seen[record.node] = record
    return {method: last[method] for method in run.methods if method in last}


def curve(run: RunData, method: str, value: Callable[[RoundRecord], float | None]) -> tuple[list[int], list[float]]:
    """Rounds and values of a curve. Rounds without the value are skipped; values that are not finite become NaN."""
    points = [(record.round, number) for record in run.of(method) if (number := value(record)) is not None]
    return [x for x, _ in points], [y if math.isfinite(y) else math.nan for _, y in points]


def _main(names: Iterable[str]) -> Metric | None:
    chosen = main_metric(names)
    return describe(chosen) if chosen else None
