"""The records of a run as pandas frames."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedapps.report.run_data import RunData
from fedapps.runs.records import NodeRecord, RoundRecord


def rounds_frame(run: RunData) -> pd.DataFrame:
    """A row per method and round; metrics are the columns ``train.NAME`` and ``evaluate.NAME``.

    ``seconds`` is wall-clock time, bytes are those of all messages of the round, and ``refused`` counts replies. In
    simulated time, ``clock`` is the time at the end of the round in seconds.
    Metrics that a round does not have are NaN.
    """
    return pd.DataFrame([_round(record) for record in run.rounds])


def nodes_frame(run: RunData) -> pd.DataFrame:
    """A row per method, round, node and phase ("train" or "evaluate") with the metrics that the node reported.

    Groups are the columns ``group.KIND``. A metric with one number per session is a column of tuples; a metric that has
    the name of another column is called ``metric.NAME``. In simulated time, ``seconds`` are those from the message to
    train to the reply, and ``staleness`` counts the server steps since the arrays that the node had received.
    """
    return pd.DataFrame([_node(record) for record in run.nodes])


def metrics_frame(run: RunData) -> pd.DataFrame:
    """A row per method with its final metrics: those of the summary, or else of the last evaluation."""
    frame = pd.DataFrame.from_dict(run.final_metrics(), orient="index")
    return frame.rename_axis("method")


def held_out_frame(run: RunData) -> pd.DataFrame:
    """A row per method, held-out node and model (``shared``, ``adapted`` or ``local``), with the node's metrics.

    The frame has no rows if the run held out no node.
    """
    rows = [
        {"method": method, "node": node, "model": model, **metrics}
        for method, of in run.summary.items()
        for node, models in of.held_out.nodes.items()
        for model, metrics in models.items()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["method", "node", "model"])


def with_columns(frame: pd.DataFrame, values: Mapping[str, Any], *, after: str) -> pd.DataFrame:
    """A copy of ``frame`` with constant columns after the column ``after``."""
    copy = frame.copy()
    index = list(copy.columns).index(after) + 1
    for name, value in reversed(list(values.items())):
        copy.insert(index, name, value)
    return copy


def _round(record: RoundRecord) -> dict[str, Any]:
    return {
        "method": record.method,
        "stage": record.stage,
        "round": record.round,
        "seconds": record.seconds,
        "bytes_down": record.bytes_down,
        "bytes_up": record.bytes_up,
        "replies": record.replies,
        "refused": len(record.refused),
        **({"clock": record.clock} if math.isfinite(record.clock) else {}),
        **{f"train.{name}": value for name, value in record.train.items()},
        **{f"evaluate.{name}": value for name, value in record.evaluate.items()},
        **{f"rates.{name}": value for name, value in record.strategy.rates.items()},
    }


def _node(record: NodeRecord) -> dict[str, Any]:
    head = {
        "method": record.method,
        "round": record.round,
        "node": record.node,
        "phase": record.phase,
        "num_examples": record.num_examples,
        **({"seconds": record.seconds, "staleness": record.staleness} if math.isfinite(record.seconds) else {}),
        **{f"group.{kind}": name for kind, name in record.groups.items()},
    }
    metrics = record.metrics
    return head | {f"metric.{name}" if name in head else name: value for name, value in metrics.items()}
