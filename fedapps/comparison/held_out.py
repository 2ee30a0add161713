"""What the methods of a comparison give to nodes that were held out of all rounds, over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedapps.base.report.estimates import Estimate
from fedapps.base.report.metrics import bare
from fedapps.runs.comparisons import HeldOut, HeldOutMetric
from fedapps.strategies.wire import HELD_OUT_PREFIXES

from .significance import seed_values

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
    held_out = summary.get("held_out", {})
    if not held_out.get("nodes"):
        return {}
    models = {model: {bare(name): value for name, value in held_out[model].items()} for model in MODELS}
    return {"held_out": {"epochs": held_out["epochs"], "nodes": len(held_out["nodes"]), **models}}


def held_out_table(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, HeldOut]:
    """By method, the means over seeds and the differences that a new node cares about.

    Parameters
    ----------
    rows : sequence of mappings
        One row per run, in the same order of seeds for each method; those with ``held_out`` count.
    metrics : sequence of str
        Those of the table.
    """
    counted = [row for row in rows if "held_out" in row]
    values = {
        model: seed_values([{"method": row["method"], "metrics": row["held_out"][model]} for row in counted])
        for model in MODELS
    }
    sizes = {row["method"]: {key: row["held_out"][key] for key in ("epochs", "nodes")} for row in counted}
    return {
        method: HeldOut(
            **sizes[method], metrics=_by_metric({model: values[model][method] for model in MODELS}, metrics)
        )
        for method in sizes
    }


def _by_metric(models: Mapping[str, Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> dict[str, HeldOutMetric]:
    by_metric = {}
    for name in map(bare, metrics):
        if all(name in models[model] for model in MODELS):
            shared, adapted, local = (Estimate.of(models[model][name]) for model in MODELS)
            by_metric[name] = HeldOutMetric(
                shared=replace(shared, values=()),
                adapted=replace(adapted, values=()),
                local=replace(local, values=()),
                gain=replace(adapted.minus(shared), values=()),
                lead=replace(adapted.minus(local), values=()),
            )
    return by_metric
