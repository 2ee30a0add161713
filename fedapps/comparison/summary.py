"""The content of ``compare.json``: runs, means, tests and claims, beside the paper's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from fedapps.config.run_config import RunConfig
from fedapps.registry.tasks import profiles_class
from fedapps.report.metrics import bare
from fedapps.runs.continual import measure_names

from .matrix import Plan
from .papers import checked_claims, paper_of
from .significance import all_tests, seed_values

#: By method or reference and metric, the mean and the standard deviation: ``mean`` and ``std``.
Table = dict[str, dict[str, dict[str, float]]]

#: The fields of a run in ``compare.json``; only runs with stages have ``matrices``.
_KEPT = ("method", "seed", "metrics", "matrices")


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
        and, if there are any, ``references``. If a key is varied, ``varied`` has table, references, tests and the
        paper's numbers for each value, ``table`` and ``tests`` are empty, and claims compare methods at values, such as
        ``fedavg at random``. The paper's numbers for a recipe are shown at the value that the recipe itself sets.
    """
    paper = paper_of(plan.recipe, plan.methods)
    metrics = metrics_to_test(str(plan.config.get("task", RunConfig.task)), rows)
    kept = [{key: row[key] for key in _KEPT if key in row} for row in rows]
    head = {"recipe": plan.recipe, "rows": kept, "paper": paper}
    if not plan.vary:
        tests = all_tests(rows, plan.methods, metrics)
        claims = checked_claims(plan.recipe, seed_values(rows))
        return {**head, "table": table_of(rows), **_given(references[0]), "tests": tests, "claims": claims}
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
        parts.append({"value": value, "table": table, **_given(of_value), "paper": own, "tests": tests})
        at_values |= {f"{method} at {value}": found for method, found in seed_values(rows[there]).items()}
    claims = checked_claims(plan.recipe, at_values)
    return {**head, "table": {}, "tests": [], "claims": claims, "varied": {"key": plan.vary.key, "values": parts}}


def metrics_to_test(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics to test: the main metrics of the task, each as the average over stages if the runs have stages."""
    found = {name for row in rows for name in row["metrics"]}
    averages = {main: measure_names(main)[0] for main in profiles_class(task).headline}
    return [average if bare(average) in found else main for main, average in averages.items()]


def _given(references: Table) -> dict[str, Table]:
    """The field for references; no field where there are none."""
    return {"references": references} if references else {}


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """Mean and sample standard deviation of the :func:`seed_values` by method and metric."""
    return {
        method: {name: _mean_and_deviation(values) for name, values in of_method.items()}
        for method, of_method in seed_values(rows).items()
    }


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    return {"mean": mean(values), "std": stdev(values) if len(values) > 1 else 0.0}
