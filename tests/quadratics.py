"""A federation of quadratics f_k(θ) = ½ a_k ‖θ − b_k‖² that runs in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from between_rounds import between
from fedapps.clients.base import FederatedClient
from fedapps.clients.local_part import LocalPart
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import ContextState
from fedapps.sim.flower_internals import flower_identity
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, Reply
from fedapps.strategies.aggregation import Aggregate
from fedapps.tasks.base import Batch, Evaluation, NodeData, Task
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from torch import Tensor, nn


class Point(nn.Module):
    """θ, and a buffer that no gradient reaches."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(size))
        self.register_buffer("scale", torch.ones(2))


class QuadraticTask(Task):
    """Node k minimises ½ a_k ‖θ − b_k‖²; it holds a_k and b_k as one example."""

    name: ClassVar[str] = "quadratic"
    Options: ClassVar[type] = tuple

    def __init__(self, curvatures: Sequence[float], optima: Sequence[Sequence[float]]) -> None:
        super().__init__((tuple(curvatures), tuple(map(tuple, optima))))

    def node(self, index: int) -> NodeData:
        curvatures, optima = self.options
        example = {"a": torch.tensor([[curvatures[index]]]), "b": torch.tensor([optima[index]])}
        return NodeData(f"node-{index}", {"train": example, "test": example})

    def build_model(self) -> nn.Module:
        return Point(len(self.options[1][0]))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return 0.5 * (batch["a"] * (model.theta - batch["b"]) ** 2).sum()

    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        return Evaluation({"test.loss": float(self.loss(model, data.splits["test"]))})

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        raise NotImplementedError

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return self.node(partition)

    def load_all(self, folder: Path) -> NodeData:
        raise NotImplementedError


FOUR = QuadraticTask([0.2, 1.0, 3.0, 1.0], [[4.0, 0.0], [-2.0, 1.0], [1.0, -3.0], [1.0, 5.0]])


def best_of(task: QuadraticTask) -> np.ndarray:
    """The θ with the smallest sum of losses."""
    curvatures, optima = task.options
    return np.average(optima, axis=0, weights=curvatures)


def damaged(kind: type[BaseStrategy]) -> type[BaseStrategy]:
    """The strategy, which takes the reply of node 0 in round 4 for one that is 50 away."""

    class Damaged(kind):  # type: ignore[misc,valid-type]
        def fold(self, reply: Reply, aggregate: Aggregate) -> None:
            if (self.report.round, reply.profile.key) == (4, "node-0"):
                reply = replace(reply, arrays={name: array + 50 for name, array in reply.arrays.items()})
            super().fold(reply, aggregate)

    return Damaged


class Federation:
    """Runs a strategy with nodes that compose some local parts.

    ``theta`` lists θ after every round.
    """

    def __init__(self, task: QuadraticTask, parts: Sequence[LocalPart], *, steps: int, learning_rate: float) -> None:
        self.task, self.parts = task, parts
        self.settings = {"steps": steps, "learning-rate": learning_rate, "optimizer": "sgd", "batch-size": 1}
        self.theta: list[np.ndarray] = []
        self.states: dict[int, RecordDict] = {}

    def run(self, strategy: BaseStrategy, num_rounds: int, **more: Any) -> np.ndarray:
        """θ after the last round."""
        initial = ArrayRecord(self.task.build_model().state_dict())
        grid = InProcessGrid(self._app(), [{} for _ in self.task.options[0]], {})
        with flower_identity():
            result = strategy.start(
                grid,
                initial,
                num_rounds,
                train_config=ConfigRecord(self.settings),
                evaluate_fn=lambda server_round, arrays: self.theta.append(arrays["theta"].numpy()),
                **between(**more),
            )
        self.theta = self.theta[1:]
        return result.arrays["theta"].numpy()

    def _app(self) -> ClientApp:
        app = ClientApp()

        @app.train()
        def train(message: Message, context: Context) -> Message:
            index = int(context.node_config["partition-id"])
            self.states[index] = context.state
            config: Mapping[str, Any] = message.content["config"]
            settings = RoundSettings().with_config(config)
            parts = [part.read(config, message.content) for part in self.parts]
            state = ContextState(context.state)
            device = torch.device("cpu")
            client = FederatedClient(self.task, self.task.node(index), state, parts=parts, seed=0, device=device)
            received = {name: array.numpy() for name, array in message.content["arrays"].items()}
            result = client.train_round(received, settings)
            arrays = ArrayRecord({name: Array(array) for name, array in result.arrays.items()})
            metrics = MetricRecord({**result.metrics, "num-examples": result.num_examples})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics, **result.records}), reply_to=message)

        @app.evaluate()
        def evaluate(message: Message, context: Context) -> Message:
            return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

        @app.query("profile")
        def profile(message: Message, context: Context) -> Message:
            record = ConfigRecord({"key": f"node-{context.node_config['partition-id']}", "num-examples": 1})
            return Message(RecordDict({"profile": record}), reply_to=message)

        return app
