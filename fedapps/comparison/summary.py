"""The content of ``compare.json``: runs, means, curves, tests and claims, beside the paper's numbers."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, isfinite
from statistics import mean
from typing import Any

from fedapps.config.run_config import RunConfig
from fedapps.registry.tasks import task_class
from fedapps.report.floors import below_floors
from fedapps.report.metrics import WORST_TENTH, bare, describe
from fedapps.runs.continual import measure_names

from .failures import about_failures, complete_rows, failures, finished_rows, with_counts
from .held_out import held_out_table
from .matrix import Plan
from .papers import Setting, checked_claims, paper_of
from .significance import Values, all_tests, seed_values, spread_of

#: By method or reference and metric: ``mean``, ``std`` (the sample standard deviation) and ``half``, half the width of
#: the 95 % confidence interval of the mean (Student's t), which is ``None`` with one seed. Those of methods that lack
#: seeds also have ``finished`` and ``planned`` (:func:`~fedapps.comparison.failures.with_counts`).
Table = dict[str, dict[str, dict[str, float | None]]]

#: The fields of a run in ``compare.json``; only runs with stages have ``matrices``, those with held-out nodes
#: ``held_out``.
_KEPT = ("method", "seed", "metrics", "matrices", "held_out")


def summarise(plan: Plan, rows: Sequence[Mapping[str, Any]], references: Sequence[Table]) -> dict[str, Any]:
    """The content of ``compare.json``.

    Parameters
    ----------
    plan : Plan
    rows : sequence of mappings
        The results of :func:`~fedapps.comparison.compare.tried_cell` in the order of ``plan.cells``, not all of which
        failed.
    references : sequence of mappings
        Those of each value of the varied key (:func:`~fedapps.comparison.references.references_of`), or only one.

    Returns
    -------
    dict
        ``recipe``, ``task``, ``rows``, ``table`` (see :func:`table_of`), ``curves`` (:func:`curves_of`), ``nodes``
        (:func:`node_means`), ``tests``, ``paper`` (the paper's numbers), ``claims`` and, if there are any,
        ``references``, ``held_out`` (:func:`~fedapps.comparison.held_out.held_out_table`), ``notes``, sentences to
        stand below the table, and ``failed``, the runs without a row (:func:`~fedapps.comparison.failures.failures`).
        If a key is varied, ``varied`` has these fields for each value except ``recipe``, ``task``, ``rows`` and
        ``claims``; in the whole, ``table``, ``curves``, ``nodes`` and ``tests`` are then empty, and claims compare
        methods at values, such as ``fedavg at random``. The paper's numbers for a recipe are shown at the value that
        the recipe itself sets.
    """
    setting = setting_of(plan)
    paper = paper_of(plan.recipe, plan.methods, setting=setting)
    task = str(plan.config.get("task", RunConfig.task))
    metrics, main = metrics_to_test(task, finished_rows(rows)), task_class(task).headline
    head = {"recipe": plan.recipe, "task": task, "rows": _kept(rows), "paper": paper}
    if not plan.vary:
        complete = complete_rows(rows)
        claims = checked_claims(plan.recipe, seed_values(complete), setting)
        notes = [*about_failures(rows), *_about_floors(task, table_of(complete), references[0])]
        return {
            **head,
            **_measured(rows, plan.methods, metrics),
            **_given(references=references[0], held_out=held_out_table(complete, main), failed=failures(rows)),
            "claims": claims,
            **_given(notes=[*notes, *_about_paper(plan, setting, seed_values(complete))]),
        }
    parts: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    at_values: dict[str, dict[str, list[float]]] = {}
    size = len(plan.seeds) * len(plan.methods)
    for place, (value, of_value) in enumerate(zip(plan.vary.values, references, strict=True)):
        there = rows[place * size : (place + 1) * size]
        complete = complete_rows(there)
        kept += [{**row, "varied": {"key": plan.vary.key, "value": value}} for row in _kept(there)]
        there_too = paper if value == plan.own_value else {}
        own = paper_of(plan.recipe, plan.methods, plan.vary.key, value, setting) or there_too
        measured = _measured(there, plan.methods, metrics)
        notes = [*about_failures(there), *_about_floors(task, table_of(complete), of_value)]
        held_out = held_out_table(complete, main)
        given = _given(references=of_value, held_out=held_out, notes=notes, failed=failures(there))
        parts.append({"value": value, **measured, **given, "paper": own})
        at_values |= {f"{method} at {value}": found for method, found in seed_values(complete).items()}
    claims = checked_claims(plan.recipe, at_values, setting)
    varied = {"key": plan.vary.key, "values": parts}
    given = _given(notes=_about_paper(plan, setting, at_values))
    return {**head, "rows": kept, **_measured([], (), ()), "claims": claims, **given, "varied": varied}


def _kept(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What ``compare.json`` has of the runs that finished."""
    return [{key: row[key] for key in _KEPT if key in row} for row in finished_rows(rows)]


def _about_paper(plan: Plan, setting: Setting, values: Values) -> list[str]:
    """Why the paper's numbers and claims on the recipe are not shown, if they are not."""
    departures = setting.departures()
    printed = paper_of(plan.recipe, plan.methods), checked_claims(plan.recipe, values)
    shown = paper_of(plan.recipe, plan.methods, setting=setting), checked_claims(plan.recipe, values, setting)
    if printed == shown:
        return []
    return [f"The paper's numbers and claims are left out: its data or nodes are others ({', '.join(departures)})."]


def setting_of(plan: Plan) -> Setting:
    """The data of a comparison and their nodes, to hold them against those of a paper."""
    simulates = bool(plan.config.get("data-dir")) and plan.configs()[0].task.has_world
    return Setting(plan.recipe, plan.config, simulates, plan.vary.key if plan.vary else "")


def _about_floors(task: str, table: Table, references: Table) -> list[str]:
    """Which methods are worse than a floor, in the mean."""
    ours, floors = (
        {name: {metric: float(spread["mean"] or 0.0) for metric, spread in row.items()} for name, row in found.items()}
        for found in (table, references)
    )
    return below_floors(task, ours, floors)


def _measured(rows: Sequence[Mapping[str, Any]], methods: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """What follows from the runs alone."""
    complete = complete_rows(rows)
    return {
        "table": with_counts(table_of(finished_rows(rows)), rows),
        "curves": curves_of(complete),
        "nodes": node_means(complete, metrics),
        "tests": all_tests(complete, methods, metrics),
    }


def metrics_to_test(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics to test: the main metrics of the task, each as the average over stages if the runs have stages."""
    found = {name for row in rows for name in row["metrics"]}
    averages = {main: measure_names(main)[0] for main in task_class(task).headline}
    return [average if bare(average) in found else main for main, average in averages.items()]


def _given(**tables: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """The tables and notes that are not empty."""
    return {name: table for name, table in tables.items() if table}


def table_of(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The spread over seeds of the :func:`seed_values` by method and metric."""
    return {
        method: {name: spread_of(values) for name, values in of_method.items()}
        for method, of_method in seed_values(rows).items()
    }


def curves_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The course of the main metrics over rounds, by method and metric.

    Returns
    -------
    dict
        ``rounds``, and for each of them ``mean`` and ``half`` over the seeds. Rounds in which not every seed was
        evaluated, as after an early stop, are omitted. If the evaluated nodes of some seeds change, also ``changed``,
        the rounds with other nodes than before in any of them, and ``paired``, with ``rounds`` and ``mean``: over the
        nodes of every evaluation of a seed; empty if a seed has none.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["method"], []).append(row)
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for method, of_method in runs.items():
        for name in of_method[0]["curves"]:
            curves = [dict(row["curves"].get(name, ())) for row in of_method]
            rounds = _common_rounds(curves)
            spreads = [spread_of([curve[r] for curve in curves]) for r in rounds]
            course: dict[str, Any] = {part: [spread[part] for spread in spreads] for part in ("mean", "half")}
            changes = [row.get("paired", {}).get(name) for row in of_method]
            if any(changes):
                pairs = [dict(of["points"]) if of else curve for of, curve in zip(changes, curves, strict=True)]
                same = _common_rounds(pairs)
                course["changed"] = sorted({number for of in changes if of for number in of["changed"]})
                course["paired"] = {"rounds": same, "mean": [mean(pair[r] for pair in pairs) for r in same]}
            found.setdefault(method, {})[name] = {"rounds": rounds, **course}
    return found


def _common_rounds(curves: Sequence[Mapping[int, float]]) -> list[int]:
    return [number for number in curves[0] if all(number in curve for curve in curves)]


def node_means(rows: Iterable[Mapping[str, Any]], metrics: Iterable[str]) -> dict[str, dict[str, dict[str, float]]]:
    """The last value of each node, as the mean over seeds, by method, metric and node."""
    wanted = list(metrics)
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for row in rows:
        of_method = values.setdefault(row["method"], {})
        for node in row["nodes"]:
            for name in wanted:
                if isinstance(value := node["metrics"].get(name), int | float):
                    of_method.setdefault(bare(name), {}).setdefault(node["node"], []).append(value)
    return {
        method: {name: {node: mean(found) for node, found in nodes.items()} for name, nodes in of_method.items()}
        for method, of_method in values.items()
    }


def worst_tenth(nodes: Sequence[Mapping[str, Any]], metrics: Iterable[str]) -> dict[str, float]:
    """What a model gives to the nodes that it serves worst.

    Parameters
    ----------
    nodes : sequence of mappings
        The metrics of each node in one evaluation.
    metrics : iterable of str
        Those of them to summarise; those whose name does not say what is better are left out.

    Returns
    -------
    dict
        ``worst_tenth.METRIC``, the mean over the tenth of the nodes with the worst finite values, rounded up to whole
        nodes; of metrics that at least two nodes report.
    """
    found = {}
    for name in metrics:
        given = [node[name] for node in nodes if isinstance(node.get(name), int | float)]
        better, values = describe(name).better, sorted(value for value in given if isfinite(value))
        if better and len(values) > 1:
            tenth = ceil(len(values) / 10)
            found[WORST_TENTH + bare(name)] = mean(values[:tenth] if better > 0 else values[-tenth:])
    return found
