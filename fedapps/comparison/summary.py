"""The content of ``compare.json``: runs, means, curves, tests and claims, beside the paper's numbers.

A method that lacks seeds, because runs failed, has a mean over the seeds that finished, and its cells say how many they
are. As the failed runs may be those with the worst results, such a method has no part in tests, claims, curves and
results by node.
"""

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, isfinite, nan
from pathlib import Path
from statistics import mean
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.base.errors import ends_of
from fedapps.base.report.metrics import WORST_TENTH, bare, describe
from fedapps.base.report.numbers import Estimate
from fedapps.config.parsing import Config
from fedapps.config.run_config import RunConfig
from fedapps.launch.launch import References, find_references
from fedapps.launch.progress import to_go
from fedapps.registry.tasks import task_class
from fedapps.report.comparison_tables import below_floors
from fedapps.runs import comparisons
from fedapps.runs.continual import measure_names

from .matrix import Plan
from .papers import Setting, Table, checked_claims, paper_of
from .significance import Values, all_tests, held_out_table, seed_values

#: The longest reason in a sentence; ``compare.json`` has all of it.
_LETTERS = 300
#: Seconds without a line.
_SILENT = 10.0
Row = Mapping[str, Any]
#: What was computed, in the folder of a comparison: metrics by reference, by point and seed.
REFERENCES = "references-by-seed.json"
#: The fields of a run in ``compare.json``; only runs with stages have ``matrices``.
_KEPT = ("method", "seed", "metrics", "matrices")


def failed_row(method: str, seed: int, last_round: int, reason: str) -> dict[str, Any]:
    """The row of a run that failed, in place of that of :func:`~fedapps.comparison.compare.run_cell`.

    Parameters
    ----------
    method : str
    seed : int
    last_round : int
        The last round that was recorded; 0 if there is none.
    reason : str
    """
    return {"method": method, "seed": seed, "failed": {"round": last_round, "reason": reason}}


def finished_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the runs that finished."""
    return [row for row in rows if "failed" not in row]


def complete_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of the methods of which no run failed."""
    lacking = {row["method"] for row in rows if "failed" in row}
    return [row for row in rows if row["method"] not in lacking]


def failures(rows: Sequence[Row]) -> list[comparisons.FailedRun]:
    """The runs that failed."""
    return [
        comparisons.FailedRun(method=row["method"], seed=row["seed"], **row["failed"])
        for row in rows
        if "failed" in row
    ]


def with_counts(table: comparisons.Estimates, rows: Sequence[Row]) -> dict[str, dict[str, Estimate]]:
    """A table whose estimates of methods that lack seeds also say how many were planned."""
    planned = Counter(row["method"] for row in rows)
    lacking = {run.method for run in failures(rows)}
    return {
        method: {name: replace(one, planned=planned[method] if method in lacking else 0) for name, one in row.items()}
        for method, row in table.items()
    }


def about_failures(rows: Sequence[Row]) -> list[str]:
    """A sentence on each method that lacks seeds, and one on what follows."""
    failed, sentences = failures(rows), []
    for method in dict.fromkeys(run.method for run in failed):
        of_method = [run for run in failed if run.method == method]
        planned = sum(row["method"] == method for row in rows)
        reasons = "; ".join(f"seed {run.seed} {where(run)}" for run in of_method)
        sentences.append(f"{method}: {len(of_method)} of {planned} runs failed ({reasons}).")
    if sentences:
        sentences.append(
            "Methods with failed runs have the mean of the other seeds, with their number in parentheses, and are left "
            "out of tests, claims, curves and results by node."
        )
    return sentences


def where(run: comparisons.FailedRun) -> str:
    """The last round of a failed run and the reason, in some words."""
    return f"after round {run.round}: {ends_of(run.reason, _LETTERS)}"


def summarise(
    plan: Plan, rows: Sequence[Mapping[str, Any]], references: Sequence[comparisons.Estimates]
) -> comparisons.Comparison:
    """The content of ``compare.json``.

    Parameters
    ----------
    plan : Plan
    rows : sequence of mappings
        The results of :func:`~fedapps.comparison.compare.tried_cell` in the order of ``plan.cells``, not all of which
        failed.
    references : sequence of mappings
        Those at each of ``plan.points`` (:func:`references_of`).

    Returns
    -------
    Comparison
        If keys are varied, claims compare methods at values, such as ``fedavg at random``. The paper's numbers for a
        recipe are shown at the values that the recipe itself sets.
    """
    rows = [{**row, "method": plan.shown(row["method"])} for row in rows]
    setting = setting_of(plan)
    task = str(plan.config.get("task", RunConfig.task))
    metrics = metrics_to_test(task, finished_rows(rows))
    about: dict[str, Any] = {
        "recipe": plan.recipe,
        "task": task,
        "labels": {name: label for label, name in plan.names.items()},
        "against": plan.shown(plan.against),
    }
    if not plan.vary:
        values = _by_label(plan, seed_values(complete_rows(rows)))
        part = _compared(plan, task, rows, metrics, references[0], _paper_at(plan, {}, setting))
        notes = (*part.notes, *_about_paper(plan, setting, values))
        claims = tuple(checked_claims(plan.recipe, values, setting))
        return comparisons.Comparison(**vars(replace(part, claims=claims, notes=notes)), **about)
    parts: list[comparisons.VariedPart] = []
    at_values: dict[str, Mapping[str, Sequence[float]]] = {}
    size = len(plan.seeds) * len(plan.methods)
    for index, (point, of_point) in enumerate(zip(plan.points, references, strict=True)):
        own_rows = rows[index * size : (index + 1) * size]
        part = _compared(plan, task, own_rows, metrics, of_point, _paper_at(plan, point, setting))
        parts.append(comparisons.VariedPart(**vars(part), point=point))
        at = ", ".join(map(str, point.values()))
        of_labels = _by_label(plan, seed_values(complete_rows(own_rows)))
        at_values |= {f"{label} at {at}": of for label, of in of_labels.items()}
    return comparisons.Comparison(
        **about,
        claims=tuple(checked_claims(plan.recipe, at_values, setting)),
        notes=tuple(_about_paper(plan, setting, at_values)),
        varied=tuple(parts),
    )


def _paper_at(plan: Plan, point: comparisons.Point, setting: Setting) -> Table:
    """The paper's numbers at a point: those for a value of a key if the recipe sets the others, or the recipe's own."""
    recipe_point = plan.own_point
    for key, value in point.items():
        printed = paper_of(plan.recipe, plan.methods, key, value, setting)
        if printed and all(point[other] == recipe_point[other] for other in point if other != key):
            break
    else:
        printed = paper_of(plan.recipe, plan.methods, setting=setting) if point == recipe_point else {}
    return {plan.shown(label): row for label, row in printed.items()}


def _by_label(plan: Plan, values: Values) -> Values:
    """Values by method under the labels, by which papers know the methods."""
    return {label: values[plan.shown(label)] for label in plan.methods if plan.shown(label) in values}


def _compared(
    plan: Plan,
    task: str,
    rows: Sequence[Mapping[str, Any]],
    metrics: Sequence[str],
    references: comparisons.Estimates,
    paper: Table,
) -> comparisons.Compared:
    """What follows from the runs at one point of the grid, or from all."""
    complete, profiles = complete_rows(rows), task_class(task)
    methods = [plan.shown(label) for label in plan.methods]
    return comparisons.Compared(
        rows=tuple(map(_run, finished_rows(rows))),
        table=with_counts(table_of(finished_rows(rows)), rows),
        curves=curves_of(complete),
        nodes=node_means(complete, metrics),
        tests=tuple(all_tests(complete, methods, metrics, profiles.rivals, plan.shown(plan.against))),
        paper=paper,
        references=references,
        held_out=held_out_table(complete, profiles.headline),
        notes=(*about_failures(rows), *below_floors(task, _means(table_of(complete)), _means(references))),
        failed=tuple(failures(rows)),
    )


def _run(row: Mapping[str, Any]) -> comparisons.ComparedRun:
    held_out = comparisons.HeldOutMeans(**row["held_out"]) if "held_out" in row else None
    return comparisons.ComparedRun(**{key: row[key] for key in _KEPT if key in row}, held_out=held_out)


def _means(table: comparisons.Estimates) -> dict[str, dict[str, float]]:
    return {name: {metric: one.mean for metric, one in row.items()} for name, row in table.items()}


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
    return Setting(plan.recipe, plan.config, simulates, tuple(vary.key for vary in plan.vary))


def metrics_to_test(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics to test: the main metrics of the task, each as the average over stages if the runs have stages."""
    measured = {name for row in rows for name in row["metrics"]}
    averages = {main: measure_names(main)[0] for main in task_class(task).headline}
    return [average if bare(average) in measured else main for main, average in averages.items()]


def table_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Estimate]]:
    """The estimate over seeds of the :func:`seed_values` by method and metric, without the values."""
    return {
        method: {name: replace(Estimate.of(values), values=()) for name, values in of_method.items()}
        for method, of_method in seed_values(rows).items()
    }


def curves_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, comparisons.Course]]:
    """The course of the main metrics over rounds, by method and metric.

    Rounds in which not every seed was evaluated, as after an early stop, are omitted.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["method"], []).append(row)
    return {
        method: {name: _course(name, of_method) for name in of_method[0]["curves"]}
        for method, of_method in runs.items()
    }


def _course(name: str, rows: Sequence[Mapping[str, Any]]) -> comparisons.Course:
    """The course of a metric, from the runs of a method."""
    curves = [dict(row["curves"].get(name, ())) for row in rows]
    rounds = _common_rounds(curves)
    estimates = [Estimate.of([curve[number] for curve in curves]) for number in rounds]
    course = comparisons.Course(
        rounds=rounds,
        mean=[one.mean for one in estimates],
        half=[nan if one.half is None else one.half for one in estimates],
    )
    changes = [row.get("paired", {}).get(name) for row in rows]
    if not any(changes):
        return course
    pairs = [dict(of["points"]) if of else curve for of, curve in zip(changes, curves, strict=True)]
    same = _common_rounds(pairs)
    paired = comparisons.Curve(rounds=same, mean=[mean(pair[number] for pair in pairs) for number in same])
    return replace(course, changed=sorted({number for of in changes if of for number in of["changed"]}), paired=paired)


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
        method: {name: {node: mean(of_node) for node, of_node in nodes.items()} for name, nodes in of_method.items()}
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
    worst = {}
    for name in metrics:
        reported = [node[name] for node in nodes if isinstance(node.get(name), int | float)]
        better, values = describe(name).better, sorted(value for value in reported if isfinite(value))
        if better and len(values) > 1:
            tenth = ceil(len(values) / 10)
            worst[WORST_TENTH + bare(name)] = mean(values[:tenth] if better > 0 else values[-tenth:])
    return worst


def references_of(plan: Plan, folder: Path) -> list[comparisons.Estimates]:
    """The references at each of ``plan.points``, as :func:`table_of` has them.

    Recorded data are the same with every seed, unless a key such as the seed of a partition follows it; simulated data
    have references for each seed. What the folder has is not computed again, nor what points have in common. If that
    takes long, as with a pretrained encoder, lines say how far it is.
    """
    path = folder / REFERENCES
    known: dict[str, References] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    same_every_seed = plan.config_of(plan.points[0], plan.seeds[0]).run.data_dir and not plan.seed_keys
    seeds = plan.seeds[:1] if same_every_seed else plan.seeds
    alike: list[tuple[tuple[Any, ...], Config, list[str]]] = []  # facts, and the names of all with these facts
    for point, seed in product(plan.points, seeds):
        config, name = plan.config_of(point, seed), _reference_name(point, seed)
        run = config.run
        drawn_by = () if run.data_dir else (run.seed,)
        facts = (run.task, config.options, run.num_nodes, run.weighting, run.data_dir, *drawn_by)
        names = next((names for of, _, names in alike if of == facts), None)
        if names is None:
            alike.append((facts, config, names := []))
        names.append(name)
    missing = [(config, names) for _, config, names in alike if not known.keys() >= set(names)]
    begun = time.monotonic()
    for done, (config, names) in enumerate(missing, start=1):
        known |= dict.fromkeys(names, find_references(config))
        write_whole(path, (json.dumps(known, indent=2) + "\n").encode())
        spent, left = time.monotonic() - begun, len(missing) - done
        if left and spent > _SILENT:
            print(
                f"{done} of {len(missing)} results without federated training; {to_go(spent, done, left)}", flush=True
            )
    return [
        table_of(
            {"method": name, "metrics": {bare(metric): number for metric, number in metrics.items()}}
            for seed in seeds
            for name, metrics in known[_reference_name(point, seed)].items()
        )
        for point in plan.points
    ]


def _reference_name(point: comparisons.Point, seed: int) -> str:
    return comparisons.point_title({**point, "seed": seed})
