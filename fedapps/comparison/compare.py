"""Methods times seeds on an engine: a table with means, deviations, paired tests and the paper's numbers."""

import json
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.launch import check_data, execute, resolve
from fedapps.report import write_report
from fedapps.runs.continual import measure_names, stage_metrics, train_test_matrix
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import comparison_text
from sim.matrix import run_matrix

from .matrix import Plan, Vary
from .papers import checked_claims, paper_of
from .significance import all_tests

#: What ``compare.json`` keeps of a run; ``matrices`` where it has stages.
_KEPT = ("method", "seed", "metrics", "matrices")


def compare_recipe(
    recipe: Path,
    *,
    methods: Sequence[str],
    seeds: int,
    first_seed: int = 0,
    engine: str = "inline",
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    vary: Vary | None = None,
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> dict[str, Any]:
    """Run the matrix, print the table and the tests, write ``compare.json`` and the report; returns the comparison.

    The rows' metrics are those of each run's last evaluation, without the prefix ``test.``; ``vary``, or what the
    recipe varies, repeats the matrix for each value of a key. Raises ``ConfigError`` before anything runs when recipe,
    methods, overrides or one of the values cannot be used, and ``RuntimeError`` when a run fails.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: must be at least 1")
    name = f"compare-{recipe.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    base = resolve(read_recipe(recipe) | dict(overrides or {}) | {"name": name}, output_dir)
    plan = Plan.of(recipe, base, methods, range(first_seed, first_seed + seeds), engine, vary)
    _check(plan)
    folder = Path(str(base["output-dir"])) / name
    folder.mkdir(parents=True)
    plan.save(folder)
    return _carry_out(plan, folder, jobs, json_path)


def resume_comparison(folder: Path, *, jobs: int = 0, json_path: Path | None = None) -> dict[str, Any]:
    """Go on with a comparison that was cut off; returns what :func:`compare_recipe` does.

    Runs that finished are read, the others go on from their last checkpoints. Raises ``ValueError`` when the folder
    is no comparison's, or its plan cannot be used any more.
    """
    plan = Plan.load(folder)
    _check(plan)
    return _carry_out(plan, folder.absolute(), jobs, json_path)


def _check(plan: Plan) -> None:
    for config in plan.configs():
        check_data(config)


def _carry_out(plan: Plan, folder: Path, jobs: int, json_path: Path | None) -> dict[str, Any]:
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    cells = plan.cells(folder)
    print(f"{len(cells)} runs in {folder}; should they be cut off: python -m fedapps compare --resume {folder}")
    # Ray brings its own parallelism.
    rows = run_matrix(cells, run_cell, jobs=1 if plan.engine == "ray" else jobs)
    comparison = summarise(plan, rows)
    text = json.dumps(comparison, indent=2) + "\n"
    (folder / "compare.json").write_text(text)
    if json_path:
        json_path.write_text(text)
    print(f"\n{comparison_text(comparison)}\n\nreport: {write_report(folder)}")
    return comparison


def run_cell(method: str, seed: int, config: dict[str, Any], engine: str, at: str = "") -> dict[str, Any]:
    """One run of the matrix, unless it has finished: its final metrics, and what its nodes reported of them.

    ``nodes`` are those of the last evaluation; :func:`_stages` says what a run with stages has besides. ``at`` tells
    the value of a varied key to those who watch.
    """
    folder = RunFolder(Path(config["output-dir"]) / config["name"], "")
    if not folder.finished(method):
        execute(parse(config | {"resume": _begun(folder.path)}), engine)
    if not folder.finished(method):
        where = f" and {at}" if at else ""
        raise RuntimeError(f"{method} with seed {seed}{where} failed; its log is above, its folder is {folder.path}")
    final = folder.summary()["methods"][method]["final"]
    evaluated = [row for row in folder.lines("nodes.jsonl") if row["phase"] == "evaluate"]
    last = max((row["round"] for row in evaluated), default=0)
    row = {
        "method": method,
        "seed": seed,
        "metrics": {_bare(name): value for name, value in final.items()},
        "nodes": [row for row in evaluated if row["round"] == last],
    }
    return row | _stages(folder.lines("metrics.jsonl"), evaluated, parse(config).run.rounds)


def _begun(path: Path) -> bool:
    """Whether a run can be resumed; what was cut off before its config was written has trained nothing and goes."""
    begun = (path / "config.toml").exists()
    if path.exists() and not begun:
        shutil.rmtree(path)
    return begun


def _stages(rounds_seen: Sequence[Any], nodes: Sequence[Any], rounds: int) -> dict[str, Any]:
    """Of a run with stages: the train-test ``matrices`` by metric, and ``on_stages``, by the name of the average and
    by node the error on each stage right after it. Nothing of other runs. What was not evaluated is ``None``."""
    found = stage_metrics(rounds_seen)
    by_node: dict[str, list[dict[str, Any]]] = {}
    for row in nodes:
        by_node.setdefault(row["node"], []).append({"round": row["round"], "evaluate": row["metrics"]})
    matrices, on_stages = {}, {}
    for metric, count in found.items():
        matrices[_bare(metric)] = _listed(train_test_matrix(rounds_seen, metric, num_stages=count, rounds=rounds))
        if metric.startswith("test."):
            on_stages[_bare(measure_names(metric)[0])] = {
                node: _listed(np.diag(train_test_matrix(seen, metric, num_stages=count, rounds=rounds)))
                for node, seen in by_node.items()
            }
    return {"matrices": matrices, "on_stages": on_stages} if found else {}


def summarise(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``compare.json`` holds, from the rows of a plan's cells in their order.

    A varied key's values each have a table, tests, and the paper's numbers, if any: those of the recipe hold where the
    value is its own. The table and the tests of all are then empty; claims are about methods at values.
    """
    paper = paper_of(plan.recipe, plan.methods)
    kept = [{key: row[key] for key in _KEPT if key in row} for row in rows]
    head = {"recipe": plan.recipe, "rows": kept, "paper": paper}
    if not plan.vary:
        table = table_of(rows)
        tests = all_tests(rows, plan.methods)
        return {**head, "table": table, "tests": tests, "claims": checked_claims(plan.recipe, table)}
    parts: list[dict[str, Any]] = []
    size = len(plan.seeds) * len(plan.methods)
    for place, value in enumerate(plan.vary.values):
        there = slice(place * size, (place + 1) * size)
        for row in kept[there]:
            row["varied"] = {"key": plan.vary.key, "value": value}
        own = paper_of(plan.recipe, plan.methods, plan.vary.key, value) or (paper if value == plan.own_value else {})
        tests = all_tests(rows[there], plan.methods)
        parts.append({"value": value, "table": table_of(rows[there]), "paper": own, "tests": tests})
    at_values = {f"{method} at {part['value']}": row for part in parts for method, row in part["table"].items()}
    claims = checked_claims(plan.recipe, at_values)
    return {**head, "table": {}, "tests": [], "claims": claims, "varied": {"key": plan.vary.key, "values": parts}}


def table_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard deviation over the runs of each method, by method and metric.

    A metric that some of the runs do not have, such as the rounds to a target that they missed, is left out.
    """
    runs: dict[str, list[Mapping[str, float]]] = {}
    for row in rows:
        runs.setdefault(row["method"], []).append(row["metrics"])
    return {
        method: {
            name: _mean_and_deviation([float(metrics[name]) for metrics in of_method])
            for name in of_method[0]
            if all(name in metrics for metrics in of_method)
        }
        for method, of_method in runs.items()
    }


def _mean_and_deviation(values: Sequence[float]) -> dict[str, float]:
    return {"mean": mean(values), "std": stdev(values) if len(values) > 1 else 0.0}


def _bare(name: str) -> str:
    return name.removeprefix("test.")


def _listed(values: NDArray[np.float64]) -> Any:
    """An array as lists for JSON, ``None`` for NaN."""
    listed = values.astype(object)
    listed[np.isnan(values)] = None
    return listed.tolist()
