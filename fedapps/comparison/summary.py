"""The content of ``compare.json``: runs, means, tests and claims, beside the paper's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedapps.config.run_config import RunConfig
from fedapps.registry.tasks import profiles_class
from fedapps.report.metrics import bare
from fedapps.runs.continual import measure_names

from .held_out import held_out_table
from .matrix import Plan
from .papers import checked_claims, paper_of
from .significance import all_tests, mean_and_deviation, seed_values

#: By method or reference and metric, the mean and the standard deviation: ``mean`` and ``std``.
Table = dict[str, dict[str, dict[str, float]]]

#: The fields of a run in ``compare.json``; only runs with stages have ``matrices``, those with held-out nodes
#: ``held_out``.
_KEPT = ("method", "seed", "metrics", "matrices", "held_out")


def summarise(plan: Plan, rows: Sequence[Mapping[str, Any]], references: Sequence[Table]) -> dict[str, Any]:
    """The content of ``compare.json``.

    Parameters
    ----------
    plan : Plan
    rows : sequence of mappings
        The results of :func:`~fedapps.comparison.compare.run_cell` in the order of ``plan.cells``.
    references : sequence of mappings
        Those of each value of the varied key (:func:`~fedapps.comparison.compare.references_of`), or only one.

    Returns
    -------
    dict
        ``recipe``, ``rows``, ``table`` (see :func:`table_of`), ``tests``, ``paper`` (the paper's numbers), ``claims``
        and, if there are any, ``references`` and ``held_out`` (:func:`~fedapps.comparison.held_out.held_out_table`). If
        a key is varied, ``varied`` has tables, tests and the paper's numbers for each value, ``table`` and ``tests``
        are empty, and claims compare methods at values, such as ``fedavg at random``. The paper's numbers for a recipe
        are shown at the value that the recipe itself sets.
    """
    paper = paper_of(plan.recipe, plan.methods)
    task = str(plan.config.get("task", RunConfig.task))
    metrics, main = metrics_to_test(task, rows), profiles_class(task).headline
    kept = [{key: row[key] for key in _KEPT if key in row} for row in rows]
    head = {"recipe": plan.recipe, "rows": kept, "paper": paper}
    if not plan.vary:
        tests = all_tests(rows, plan.methods, metrics)
        claims = checked_claims(plan.recipe, seed_values(rows))
        given = _given(references=references[0], held_out=held_out_table(rows, main))
        return {**head, "table": table_of(rows), **given, "tests": tests, "claims": claims}
    parts: list[dict[str, Any]] = []
    at_values: dict[str, dict[str, list[float]]] = {}
    size = len(plan.seeds) * len(plan.methods)
    for place, (value, of_value) in enumerate(zip(plan.vary.values, references, strict=True)):
        there = slice(place * size, (place + 1) * size)
        for row in kept[there]:
            row["varied"] = {"key": plan.vary.key, "value": value}
        own = paper_of(plan.recipe, plan.methods, plan.vary.key, value) or (paper if value == plan.own_value else {})
        tests = all_tests(rows[there], plan.methods, metrics)
        table = table_of(rows[there])
        given = _given(references=of_value, held_out=held_out_table(rows[there], main))
        parts.append({"value": value, "table": table, **given, "paper": own, "tests": tests})
        at_values |= {f"{method} at {value}": found for method, found in seed_values(rows[there]).items()}
    claims = checked_claims(plan.recipe, at_values)
    return {**head, "table": {}, "tests": [], "claims": claims, "varied": {"key": plan.vary.key, "values": parts}}


def metrics_to_test(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics to test: the main metrics of the task, each as the average over stages if the runs have stages."""
    found = {name for row in rows for name in row["metrics"]}
    averages = {main: measure_names(main)[0] for main in profiles_class(task).headline}
    return [average if bare(average) in found else main for main, average in averages.items()]


def _given(**tables: Mapping[str, Any]) -> dict[str, Any]:
    """The tables that are not empty."""
    return {name: table for name, table in tables.items() if table}


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Mean and sample standard deviation of the :func:`seed_values` by method and metric."""
    return {
        method: {name: mean_and_deviation(values) for name, values in of_method.items()}
        for method, of_method in seed_values(rows).items()
    }
