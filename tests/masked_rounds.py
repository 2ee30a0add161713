"""Rounds of secure aggregation in one process, whose nodes drop out where a test says."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, SecureAggregation, secagg_query
from fedapps.strategies.secure_node import masked
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from toys import arrays_of, record_of

Arrays = dict[str, np.ndarray]
#: Which partitions do not answer an exchange, by its name: keys, shares, masked, unmask.
Dropouts = Mapping[str, Collection[int]]


def updates_app(
    update: Callable[[int, Arrays], Arrays],
    dropouts: Dropouts | None = None,
    metrics: Callable[[int], dict[str, float]] = lambda partition: {"num-examples": 1},
) -> ClientApp:
    """Nodes that add ``update(partition, received)`` to what they receive, and round by their partition."""
    app, dropouts = ClientApp(), dropouts or {}

    def drop(step: str, partition: int) -> None:
        if partition in dropouts.get(step, ()):
            raise RuntimeError(f"dropped out at {step}")

    def trained(message: Message, context: Context) -> Message:
        partition, received = int(context.node_config["partition-id"]), arrays_of(message.content["arrays"])
        arrays = {name: received[name] + change for name, change in update(partition, received).items()}
        content = {"arrays": record_of(arrays), "metrics": MetricRecord(metrics(partition))}
        return Message(RecordDict(content), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        partition = int(context.node_config["partition-id"])
        drop("masked", partition)
        return masked(message, context, trained, np.random.default_rng(partition))

    @app.query("secagg")
    def answer(message: Message, context: Context) -> Message:
        drop(str(message.content["secagg"]["step"]), int(context.node_config["partition-id"]))
        return secagg_query(message, context)

    return app


class SeenGrid(InProcessGrid):
    """A grid that keeps what the server saw: ``seen`` lists (node, message type, content of the reply)."""

    def __init__(self, app: ClientApp, node_configs: list[dict[str, Any]], **more: Any) -> None:
        super().__init__(app, node_configs, {}, errors="reply", **more)
        self.seen: list[tuple[int, str, RecordDict | None]] = []
        self.sent: list[Message] = []

    def push_messages(self, messages):
        messages = list(messages)
        self.sent += messages
        return super().push_messages(messages)

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        kind = message.metadata.message_type
        self.seen.append((message.metadata.dst_node_id, kind, None if reply.has_error() else reply.content))
        return reply


def masked_strategy(part: SecureAggregation, **more: Any) -> BaseStrategy:
    """FedAvg with secure aggregation."""
    return BaseStrategy(secure_aggregation=part, **{"weighting": "uniform", "node_wait": 0.0, **more})


def run_masked(
    part: SecureAggregation,
    app: ClientApp,
    arrays: Arrays,
    nodes: int | list[dict[str, Any]],
    rounds: int = 1,
    *,
    grids: list[SeenGrid] | None = None,
    **strategy: Any,
) -> tuple[ArrayRecord, BaseStrategy, SeenGrid]:
    """The shared arrays after the rounds, the strategy with its last report, and the grid, also in ``grids``."""
    grid = SeenGrid(app, [{} for _ in range(nodes)] if isinstance(nodes, int) else nodes)
    if grids is not None:
        grids.append(grid)
    server = masked_strategy(part, **strategy)
    result = server.start(grid, record_of(arrays), num_rounds=rounds)
    return result.arrays, server, grid
