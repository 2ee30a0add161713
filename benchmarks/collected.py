"""How the folder in which an experiment has run becomes a result."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any

from fedapps.audit.leakage import MEASURES
from fedapps.base.report.metrics import bare, columns, is_on_stage
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.significance import MODELS, seed_values
from fedapps.registry.methods import canonical
from fedapps.runs.comparisons import Comparison, VariedPart
from fedapps.runs.run_folder import RunFolder

from .results import stored_label

_PACKAGES = ("flwr", "torch", "numpy")


def of_folder(folder: Path, *, by_node: bool = False, by_round: str = "") -> dict[str, Any]:
    """What came out of an experiment, as fields of :class:`Result`, from the folder in which it has run.

    This is a comparison, a tuning or an audit of fedapps, or ``rows.json`` of a benchmark. ``by_node`` and
    ``by_round`` are those of :class:`~benchmarks.experiments.Experiment`.
    """
    if (rows := folder / "rows.json").exists():
        lines = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
        methods = {name: of for line in lines for name, of in line.get("methods", {}).items()}
        return {"methods": _estimates(methods), "rows": [line for line in lines if "methods" not in line]}
    run = run_folder(folder)
    if comparison := Comparison.read(run):
        found = _of_comparison(run, comparison, json.loads((run / "plan.json").read_text(encoding="utf-8")))
        if by_node:
            found["methods"] |= _estimates(_by_node(run, comparison))
        if by_round:
            found["methods"] |= _estimates(_by_round(run, comparison, by_round))
        return found
    if (tuning := run / "tune.json").exists():
        return _of_tuning(json.loads(tuning.read_text(encoding="utf-8")))
    return _of_audit(json.loads((run / "audit.json").read_text(encoding="utf-8")))


def run_folder(folder: Path) -> Path:
    """The newest comparison, tuning or audit in the folder of an experiment; the folder itself of a benchmark."""
    if (folder / "rows.json").exists():
        return folder
    folders = [path for kind in ("compare", "tune", "audit") for path in folder.glob(f"{kind}-*")]
    if not folders:
        raise ValueError(f"{folder} has no comparison, tuning or audit")
    return max(folders, key=lambda path: path.stat().st_mtime)


def provenance() -> dict[str, Any]:
    """The date, the machine and the versions of the packages that decide the bits."""
    model = platform.processor() or platform.machine()
    machine = f"{len(os.sched_getaffinity(0))} cores, {model}, {platform.system()}"
    versions = {"python": platform.python_version()} | {package: version(package) for package in _PACKAGES}
    return {"date": date.today().isoformat(), "machine": machine, "versions": versions}


def _seconds(run: Path, label: str, seed: int) -> float:
    """What a run of a comparison took; it is not part of ``compare.json``, which a resumed comparison repeats."""
    summary = json.loads((run / f"{label}-{seed}" / "summary.json").read_text(encoding="utf-8"))
    return float(summary["methods"][label]["seconds"])


def _of_comparison(run: Path, compared: Comparison, plan: Mapping[str, Any]) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    references: dict[str, dict[str, Estimate]] = {}
    failed: list[dict[str, Any]] = []
    for part in compared.parts.values():
        at = f" at {', '.join(map(str, part.point.values()))}" if isinstance(part, VariedPart) else ""
        rows = [asdict(row) for row in part.rows]
        for label, of_method in seed_values(rows).items():
            kept = set(columns(of_method))
            methods[canonical(label) + at] = {name: values for name, values in of_method.items() if name in kept}
            if not at:
                finished = [row["seed"] for row in rows if row["method"] == label]
                methods[canonical(label)]["seconds"] = [_seconds(run, label, seed) for seed in finished]
        methods |= _held_out(rows, at)
        failed += [{**asdict(one), "method": canonical(one.method) + at} for one in part.failed]
        for name, row in part.references.items():
            known = {metric: one for metric, one in row.items() if isfinite(one.mean)}
            references[name + at] = {m: one if one.seeds > 1 else Estimate.of([one.mean]) for m, one in known.items()}
    keys = {key: value for key, value in plan["config"].items() if key not in ("name", "output-dir", "methods")}
    return {
        "recipe": compared.recipe,
        "keys": {key: value for key, value in keys.items() if not str(value).startswith("/")},
        "seeds": plan["seeds"],
        "methods": _estimates(methods) | references,
        "failed": failed,
    }


def _held_out(rows: Sequence[Mapping[str, Any]], at: str) -> dict[str, Any]:
    """What a comparison gives to held-out nodes: ``fedavg: adapted`` is the adapted model of ``fedavg``."""
    return {
        f"{canonical(label)}: {model}{at}": {name: of_method[name] for name in columns(of_method)}
        for model in MODELS
        for label, of_method in seed_values(
            [{"method": row["method"], "metrics": row["held_out"][model]} for row in rows if row["held_out"]]
        ).items()
    }


def _by_node(run: Path, compared: Comparison) -> dict[str, Any]:
    """The final test error of each node in each stage: ``fedavg, client-1`` is of that node."""
    return seed_values(
        {
            "method": f"{canonical(one.method)}, {node['node']}",
            "metrics": {n: value for n, value in node["metrics"].items() if is_on_stage(n) and ".test." in n},
        }
        for part in compared.parts.values()
        for one in part.rows
        for node in RunFolder(run / f"{one.method}-{one.seed}", "").last_evaluation()
    )


def _by_round(run: Path, compared: Comparison, metric: str) -> dict[str, Any]:
    """A metric after each round with an evaluation: ``fedavg, round 2`` is of round 2."""
    return seed_values(
        {"method": f"{canonical(one.method)}, round {row['round']}", "metrics": {bare(metric): row["evaluate"][metric]}}
        for part in compared.parts.values()
        for one in part.rows
        for row in RunFolder(run / f"{one.method}-{one.seed}", "").lines("metrics.jsonl")
        if metric in row["evaluate"]
    )


def _of_tuning(tuning: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        {"method": stored_label(label), "metric": tuning["metric"]}
        | {key: tuned[key] for key in ("current", "tuned", "settings", "near_end", "counts")}
        for label, tuned in tuning["methods"].items()
    ]
    return {"recipe": tuning["recipe"], "seeds": tuning["seeds"], "rows": rows}


def _of_audit(audit: Mapping[str, Any]) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for row in audit["rows"]:
        if "situation" in row:  # what an update or a final model reveals, with a list over the seeds
            measured = {name: row[name] for name in MEASURES if name in row}
            methods[f"{row['attack']}, {row['situation']}"] = measured
            continue
        label = f"{row['method']}, {row['attack']} on {row['on']}, {row['attacker']} at {row['batch_size']}"
        measured = {key: row.get(key) for key in ("recall", "precision", "ptlr", "seconds")}
        methods[label] = {key: [value] for key, value in measured.items() if value is not None}
    return {"recipe": audit["recipe"], "methods": _estimates(methods)}


def _estimates(methods: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Estimate]]:
    return {
        method: {
            metric: Estimate.of(values) for metric, values in of_method.items() if values and all(map(isfinite, values))
        }
        for method, of_method in methods.items()
    }
