"""Comparisons: runs of several methods with several seeds, and the table, tests and report of them all."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from fedapps.app.cost import guarantee_of_all
from fedapps.base.atomic import write_whole
from fedapps.base.errors import RunFailedError
from fedapps.base.processes import usable_cores
from fedapps.base.report.metrics import bare
from fedapps.base.report.numbers import format_duration
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.estimate import inline_seconds
from fedapps.launch.inputs import check_data, resolve
from fedapps.launch.launch import check_engine, check_machine, execute
from fedapps.launch.plan import following, timed_name
from fedapps.launch.progress import MatrixProgress, log_of
from fedapps.registry.tasks import task_class
from fedapps.report import write_report
from fedapps.report.comparison_tables import comparison_text
from fedapps.report.evaluated import pair
from fedapps.report.paper import write_formats
from fedapps.runs.comparisons import FILE
from fedapps.runs.continual import stage_metrics, train_test_matrix
from fedapps.runs.owner import await_free, check_free, owned
from fedapps.runs.records import NodeRecord, RoundRecord, read_lines
from fedapps.runs.run_folder import RunFolder, begun
from fedapps.runs.tables import RefusedNodesError, refused_text
from fedapps.sim.matrix import WorkerLostError, Workers, run_matrix
from fedapps.sim.ray_cluster import RayCluster
from fedapps.strategies import RunEndedError

from .matrix import Plan, Vary
from .significance import held_out_row
from .summary import failed_row, failures, finished_rows, references_of, summarise, where, worst_tenth


def compare_recipe(
    recipe: Path,
    *,
    methods: Sequence[str],
    seeds: int,
    first_seed: int = 0,
    engine: str = "inline",
    jobs: int = 0,
    cluster: str = "",
    overrides: Mapping[str, Any] | None = None,
    vary: Sequence[Vary] = (),
    seed_keys: Sequence[str] = (),
    against: str = "",
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> Path:
    """Run a comparison, print its table and tests, and write ``compare.json`` and the report.

    A run that fails, such as one that diverges, does not end the comparison: ``compare.json`` and the table say which
    runs failed, and :func:`resume_comparison` repeats them.

    Parameters
    ----------
    recipe : Path
        Name of a recipe, or path of a run-config file.
    methods : sequence of str
        Methods such as ``fedprox(mu=0.1)`` or ``fedprox(mu=0.1) as FedProx``; those of the recipe if empty.
    seeds : int
        Number of seeds, at least 1.
    first_seed : int
        The first seed; the others follow it.
    engine : "inline" or "ray"
    jobs : int
        Number of parallel runs; 0: one per CPU core of this machine or of the cluster.
    cluster : str
        Address of a Ray cluster on which the runs are executed (:class:`fedapps.sim.ray_cluster.RayCluster`); empty:
        this machine.
    overrides : mapping, optional
        Keys of the run config that override the recipe. ``name`` names the folder of the comparison.
    vary : sequence of Vary
        The keys to vary, whose values are combined, each with each; the recipe's if empty.
    seed_keys : sequence of str
        Keys that take the value of the seed in each run; if empty, those of the recipe that no override sets.
    against : str
        The baseline, by its label or display name: each other method is tested against it alone; empty: pairs are.
    output_dir : str
        Where the folder of the comparison is created.
    json_path : Path, optional
        Also write the content of ``compare.json`` to this file.

    Returns
    -------
    Path
        The folder of the comparison; :func:`~fedapps.comparison.summary.summarise` describes its ``compare.json``.

    Raises
    ------
    ValueError
        Before anything runs, if the recipe, a method, an override or a varied value is invalid.
    RunFailedError
        If all runs fail.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: must be at least 1")
    keys, name = dict(overrides or {}), timed_name(f"compare-{recipe_name(recipe)}")
    base = resolve(read_recipe(recipe, keys) | {"name": name}, output_dir)
    follow, all_seeds = following(recipe, seed_keys, keys), range(first_seed, first_seed + seeds)
    plan = Plan.of(recipe, base, methods, all_seeds, engine, vary, follow, against)
    with _workers(plan, cluster) as workers:
        _check(plan, cluster)
        with plan.new_folder(str(keys.get("name", ""))) as (plan, folder):
            print(plan.outline, flush=True)
            print(_expected(plan, 1 if cluster else plan.parallel(jobs) or usable_cores()), flush=True)
            return _carry_out(plan, folder, jobs, workers, json_path)


def resume_comparison(folder: Path, *, jobs: int = 0, cluster: str = "", json_path: Path | None = None) -> Path:
    """Resume an interrupted comparison.

    Finished runs are not repeated; the others, also those that failed, are resumed from their last checkpoints. A run
    that has finished without a node, every reply of which was refused, has failed; it begins again.

    Parameters
    ----------
    folder : Path
        Folder of the comparison.
    jobs, cluster, json_path
        As in :func:`compare_recipe`.

    Returns
    -------
    Path
        As in :func:`compare_recipe`.

    Raises
    ------
    ValueError
        If the folder has no valid plan, or another process works in it.
    RunFailedError
        If all runs fail.
    """
    plan = Plan.load(folder)
    check_free(folder)
    with _workers(plan, cluster) as workers, owned(folder):
        _check(plan, cluster)
        return _carry_out(plan, folder.absolute(), jobs, workers, json_path)


def _check(plan: Plan, cluster: str) -> None:
    for config in plan.configs():
        check_engine(plan.engine, config.run)
        if not cluster:
            check_machine(plan.engine, config.run)
        check_data(config)


def _expected(plan: Plan, at_a_time: int) -> str:
    """How long the runs take, by dry runs of the first node at each point of the grid."""
    try:
        seconds = len(plan.seeds) * sum(map(inline_seconds, plan.configs()))
        at_a_time = min(at_a_time, plan.num_runs)
    except ValueError as error:
        return f"expected time: unknown, because the first node does not train alone: {error}"
    together = f", {format_duration(seconds / at_a_time)} with {at_a_time} at a time" if at_a_time > 1 else ""
    of_rounds = f"{format_duration(seconds)} for all rounds one after another{together}"
    return f"expected time: {of_rounds}, by the data of the first node and without the start of each run"


def _workers(plan: Plan, cluster: str) -> AbstractContextManager[Workers | None]:
    """The machines of a cluster; ``None`` stands for this machine."""
    if not cluster:
        return nullcontext()
    if plan.engine != "inline":
        raise ValueError(f"cluster {cluster!r}: needs the engine inline, in which each run is one task of the cluster")
    return RayCluster(cluster, int(plan.config.get("node-cpus", RunConfig.node_cpus)))


def _carry_out(plan: Plan, folder: Path, jobs: int, cluster: Workers | None, json_path: Path | None) -> Path:
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    cells = plan.cells(folder)
    print(f"{len(cells)} runs in {folder}; if interrupted, resume: python -m fedapps compare --resume {folder}")
    print(f"the logs of the runs are in {folder / 'logs'}")
    references = references_of(plan, folder)
    at_a_time = jobs if cluster else plan.parallel(jobs)
    try:
        with MatrixProgress(len(cells)) as progress:
            rows = run_matrix(cells, tried_cell, jobs=at_a_time, cluster=cluster, watch=progress, log_of=log_of)
    except WorkerLostError as error:
        raise RunFailedError(f"{error}; the folder {folder} has everything that was trained") from error
    failed = _failed_text(cells, rows)
    if not finished_rows(rows):
        first = failures(rows)[0].reason
        raise RunFailedError(f"{failed}\nthe first: {first}\nthe folder {folder} has everything that was trained")
    comparison = summarise(plan, rows, references)
    if privacy := guarantee_of_all(folder / cell["config"]["name"] for cell in cells):
        comparison = replace(comparison, notes=(*comparison.notes, f"Privacy: {privacy}."))
    text = comparison.text()
    for path in filter(None, (folder / FILE, json_path)):
        write_whole(path, text.encode())
    print(f"\n{comparison_text(comparison)}\n", flush=True)
    print(f"report: {write_report(folder)}")
    written = write_formats(folder, ("tex", "md", "csv", "pdf"))
    print(f"for a paper: {', '.join(path.name for path in written[:3])}, and {len(written) - 3} figures in figures/")
    if failed:
        print(f"\n{failed}\nthe table has the other runs; fedapps compare --resume {folder} repeats those that failed")
    return folder


def _failed_text(cells: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """The runs that failed, one a line; empty if none did."""
    failed = [(cell, row) for cell, row in zip(cells, rows, strict=True) if "failed" in row]
    lines = [f"  {_run_text(**cell)} {where(failures([row])[0])}" for cell, row in failed]
    return "\n".join([f"{len(failed)} of {len(rows)} runs failed:", *lines]) if failed else ""


def tried_cell(method: str, seed: int, config: dict[str, Any], engine: str, at: str = "") -> dict[str, Any]:
    """:func:`run_cell`, or if the run fails a :func:`~fedapps.comparison.summary.failed_row`.

    A run that failed because of refused nodes has finished, so that it begins again.
    """
    folder = RunFolder(Path(config["output-dir"]) / config["name"], "")
    if refused_text(folder):
        await_free(folder.path)
        folder.begin_again()
    try:
        return run_cell(method, seed, config, engine, at)
    except RunFailedError as error:
        print(error, file=sys.stderr)
        last = max((row["round"] for row in folder.lines("metrics.jsonl")), default=0)
        reason = str(error.__cause__ or f"it ended early; logs/{log_of({'config': config}).name} says why")
        return failed_row(method, seed, last, reason)


def _run_text(method: str, seed: int, at: str = "", **_: Any) -> str:
    """A run in words."""
    return f"{method} with seed {seed}{f' and {at}' if at else ''}"


def run_cell(method: str, seed: int, config: dict[str, Any], engine: str, at: str = "") -> dict[str, Any]:
    """Execute one run of a comparison, unless it has finished.

    Parameters
    ----------
    method : str
        Label of the method.
    seed : int
    config : dict
        The flat run config.
    engine : "inline" or "ray"
    at : str
        The values of the varied keys, for messages; empty if no key is varied.

    Returns
    -------
    dict
        ``method``, ``seed``, the final ``metrics`` without the prefix ``test.`` and those of the :func:`worst_tenth
        <fedapps.comparison.summary.worst_tenth>` of the nodes, ``curves``: the rounds and values of
        the main metrics, ``paired``: those in which the evaluated nodes change (see :func:`_paired`), and ``nodes``:
        the rows of the last evaluation by node. Runs with stages also have
        ``matrices``: the train-test matrix of each metric. Runs with held-out nodes have ``held_out``
        (:func:`~fedapps.comparison.significance.held_out_row`).

    Raises
    ------
    RunFailedError
        If the run fails, or every reply of a node was refused.
    """
    folder = RunFolder(Path(config["output-dir"]) / config["name"], "")
    failed = f"{_run_text(method, seed, at)} failed"
    if not folder.finished(method):
        await_free(folder.path)  # one that was lost with its host can have died a moment ago
        try:
            execute(parse(config | {"resume": begun(folder.path)}), engine)
        except RefusedNodesError:
            pass  # raised below, where a run that has finished before is checked, too
        except RunEndedError as error:
            raise RunFailedError(f"{failed}: {error}\ntrained models are in {folder.path}") from error
    if not folder.finished(method):
        raise RunFailedError(f"{failed}; see the log {log_of({'config': config})} and the folder {folder.path}")
    if refused := refused_text(folder):
        raise RunFailedError(f"{failed}: {refused}") from RefusedNodesError(refused)
    summary = folder.summary()["methods"][method]
    run = parse(config).run
    rounds, headline = folder.lines("metrics.jsonl"), task_class(run.task).headline
    final = folder.last_evaluation()
    worst = worst_tenth([row["metrics"] for row in final], headline)
    row = {
        "method": method,
        "seed": seed,
        "metrics": {bare(name): value for name, value in summary["final"].items()} | worst,
        "curves": _curves(rounds, headline),
        "paired": _paired(folder.path, headline),
        "nodes": final,
    }
    matrices = _matrices(rounds, run.rounds, folder.rounds_before(method))
    return row | ({"matrices": matrices} if matrices else {}) | held_out_row(summary)


def _curves(rounds_seen: Sequence[Any], metrics: Sequence[str]) -> dict[str, list[tuple[int, float]]]:
    """The rounds and finite values of metrics; metrics that no round has are left out."""
    evaluated = {name: [(row["round"], row["evaluate"].get(name)) for row in rounds_seen] for name in metrics}
    finite = {
        bare(name): [(r, value) for r, value in values if isinstance(value, int | float) and isfinite(value)]
        for name, values in evaluated.items()
    }
    return {name: values for name, values in finite.items() if values}


def _paired(folder: Path, metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By metric whose evaluated nodes change: ``changed``, the rounds, and ``points`` of the paired curve."""
    rounds, _ = read_lines(folder / "metrics.jsonl", RoundRecord)
    nodes = [node for node in read_lines(folder / "nodes.jsonl", NodeRecord)[0] if node.phase == "evaluate"]
    pairs = {name: pair(name, rounds, nodes) for name in metrics}
    return {
        bare(name): {
            "changed": [change.round for change in paired.changes],
            "points": list(zip(paired.rounds, paired.values, strict=True)),
        }
        for name, paired in pairs.items()
        if paired
    }


def _matrices(rounds_seen: Sequence[Any], rounds: int, before: int) -> dict[str, Any]:
    """The train-test matrix of each metric, with NaN for missing evaluations; empty for a run without stages."""
    return {
        bare(metric): train_test_matrix(rounds_seen, metric, num_stages=count, rounds=rounds, begun=before).tolist()
        for metric, count in stage_metrics(rounds_seen).items()
    }
