"""What the methods of a comparison give to nodes that were held out of all rounds, over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedapps.report.metrics import bare
from fedapps.runs.tables import number, text_table
from fedapps.strategies.wire import HELD_OUT_PREFIXES

from .significance import paired_difference, seed_values, spread_of

#: The received model, the adapted one, and the one that the node trained alone.
MODELS = tuple(prefix.removesuffix(".") for prefix in HELD_OUT_PREFIXES)


def held_out_row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The field ``held_out`` of a run in ``compare.json``: ``epochs``, the number of ``nodes``, and the mean metrics of
    each model without the prefix ``test.``. Empty if the run held out no node, or none of them replied.

    Parameters
    ----------
    summary : mapping
        The method in ``summary.json``.
    """
    found = summary.get("held_out", {})
    if not found.get("nodes"):
        return {}
    models = {model: {bare(name): value for name, value in found[model].items()} for model in MODELS}
    return {"held_out": {"epochs": found["epochs"], "nodes": len(found["nodes"]), **models}}


def held_out_table(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, Any]:
    """The means over seeds, and the differences that a new node cares about.

    Parameters
    ----------
    rows : sequence of mappings
        One row per run, in the same order of seeds for each method; those with ``held_out`` count.
    metrics : sequence of str
        Those of the table.

    Returns
    -------
    dict
        By method: ``epochs``, the number of ``nodes`` of a seed, and ``metrics``: by metric the spread over seeds of
        each model (:func:`~fedapps.comparison.significance.spread_of`), and as ``gain`` and ``lead`` the paired
        differences adapted − shared and adapted − local (:class:`~fedapps.comparison.significance.Difference`).
    """
    counted = [row for row in rows if "held_out" in row]
    values = {
        model: seed_values([{"method": row["method"], "metrics": row["held_out"][model]} for row in counted])
        for model in MODELS
    }
    sizes = {row["method"]: {key: row["held_out"][key] for key in ("epochs", "nodes")} for row in counted}
    return {
        method: {**sizes[method], "metrics": _by_metric({model: values[model][method] for model in MODELS}, metrics)}
        for method in sizes
    }


def held_out_text(table: Mapping[str, Any]) -> str:
    """The :func:`held_out_table` as text, a table for each metric."""
    texts = []
    for metric in dict.fromkeys(metric for found in table.values() for metric in found["metrics"]):
        rows = {method: found["metrics"][metric] for method, found in table.items() if metric in found["metrics"]}
        header = [f"held-out nodes: {metric}", *MODELS, "adapted - shared", "adapted - local"]
        lines = [
            [method, *(_spread(row[model]) for model in MODELS), _difference(row["gain"]), _difference(row["lead"])]
            for method, row in rows.items()
        ]
        texts.append(text_table(header, lines))
    if texts:
        sizes = {(found["nodes"], found["epochs"]) for found in table.values()}
        said = ", ".join(f"{nodes} nodes, {epochs} epochs" for nodes, epochs in sorted(sizes))
        texts[0] = (
            f"nodes that took no part in the rounds: {said}; ± and ranges are 95 % intervals over seeds\n{texts[0]}"
        )
    return "\n\n".join(texts)


def _by_metric(models: Mapping[str, Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> dict[str, Any]:
    shared, adapted, local = (models[model] for model in MODELS)
    return {
        name: {
            **{model: spread_of(models[model][name]) for model in MODELS},
            "gain": asdict(paired_difference(adapted[name], shared[name])),
            "lead": asdict(paired_difference(adapted[name], local[name])),
        }
        for name in map(bare, metrics)
        if name in shared and name in adapted and name in local
    }


def _spread(found: Mapping[str, float | None]) -> str:
    return number(found["mean"]) + ("" if found["half"] is None else f" ± {found['half']:.2g}")


def _difference(found: Mapping[str, float | None]) -> str:
    limits = "" if found["low"] is None else f" ({number(found['low'])} to {number(found['high'])})"
    return number(found["mean"]) + limits
