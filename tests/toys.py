"""Small stand-ins for tests: a task that learns in milliseconds, and clients that know nothing of this project."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from between_rounds import between
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies import BaseStrategy
from fedapps.tasks.base import Batch, DataError, Evaluation, NodeData, Task
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn
from torch.nn.functional import mse_loss

Arrays = dict[str, np.ndarray]


class ToyModel(nn.Module):
    """Two linear maps, one after the other, and a count of the training passes (an integer buffer)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 1)
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        return self.head(self.encoder(x))


@dataclass(frozen=True)
class ToyOptions:
    """``failing`` partitions raise when they train, ``poisoned`` ones have NaN among their targets.

    Every world that is made leaves a file in ``diary`` (where given).
    """

    examples: int = 6
    failing: tuple[int, ...] = ()
    poisoned: tuple[int, ...] = ()
    diary: str = ""


class ToyTask(Task):
    """Fit ``y = w_k · x`` where ``w_k`` depends on the partition ``k``; can collect examples with ``w = 0``."""

    name: ClassVar[str] = "toy"
    Options: ClassVar[type] = ToyOptions

    def __init__(self, options: ToyOptions | None = None) -> None:
        self.options = options or ToyOptions()

    def build_model(self) -> ToyModel:
        return ToyModel()

    def data(self, partition: int) -> NodeData:
        """A partition's data without a file: 6 examples to train on by default, 3 to test on."""
        count = self.options.examples + 3
        x = torch.from_numpy(np.random.default_rng(partition).normal(size=(count, 2)).astype(np.float32))
        y = x @ torch.tensor([[1.0], [float(partition)]])
        if partition in self.options.poisoned:
            y[0] = torch.nan
        train, test = {"x": x[:-3], "y": y[:-3]}, {"x": x[-3:], "y": y[-3:]}
        return NodeData(f"toy-{partition}", {"train": train, "test": test}, {"parity": str(partition % 2)})

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        for partition in range(num_nodes):
            (folder / f"{partition}.txt").write_text(f"{partition} {seed}")
        if self.options.diary:
            (Path(self.options.diary) / uuid.uuid4().hex).touch()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        if not (folder / f"{partition}.txt").exists():
            raise DataError(f"{folder}: no data for node {partition} of {num_partitions}")
        return self.data(partition)

    def load_all(self, folder: Path) -> NodeData:
        parts = [self.data(int(path.stem)) for path in sorted(folder.glob("*.txt"))]
        splits = {
            split: {name: torch.cat([part.splits[split][name] for part in parts]) for name in ("x", "y")}
            for split in ("train", "test")
        }
        return NodeData(f"all-{len(parts)}", splits)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return mse_loss(model(batch["x"]), batch["y"])

    def batches(self, data: NodeData, split: str, batch_size: int) -> Any:
        if data.key in {f"toy-{partition}" for partition in self.options.failing}:
            raise RuntimeError(f"{data.key} fails on demand")
        return super().batches(data, split, batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """The test loss, a draw from ``seed`` and one from torch's generator, and a list."""
        test = data.splits["test"]
        metrics = {
            "test.loss": float(self.loss(model, test)),
            "test.draw": float(np.random.default_rng(seed).random()),
            "test.torch_draw": float(torch.rand(())),
            "test.errors": (model(test["x"]) - test["y"]).abs().flatten().tolist(),
        }
        if final:
            metrics["test.final"] = 1.0
        return Evaluation(metrics, {"outputs": model(test["x"]).numpy()})

    @property
    def can_collect(self) -> bool:
        return True

    def collect(self, model: nn.Module, data: NodeData, *, seed: int) -> Mapping[str, np.ndarray]:
        x = np.random.default_rng(seed).normal(size=(4, 2)).astype(np.float32)
        return {"x": x, "y": np.full((4, 1), float(torch.rand(())), dtype=np.float32)}

    def with_collected(self, data: NodeData, collected: Mapping[str, np.ndarray]) -> NodeData:
        train = {
            name: torch.cat((tensor, torch.from_numpy(collected[name])))
            for name, tensor in data.splits["train"].items()
        }
        return replace(data, splits={**data.splits, "train": train})


def learn(task: Task, model: nn.Module, data: NodeData, *, epochs: int, rate: float, batch_size: int) -> nn.Module:
    """The model after plain training with Adam, for evaluation."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    torch.manual_seed(0)
    model.train()
    for _ in range(epochs):
        for batch in task.batches(data, "train", batch_size):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
    return model.eval()


# -- clients and servers of other projects -------------------------------------------------------------------


def template_net() -> nn.Module:
    """The same small network in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def template_app(examples: Callable[[int], int]) -> ClientApp:
    """A ClientApp in the manner of Flower's PyTorch template: names its metrics freely, answers no query.

    Partition ``k`` has ``examples(k)`` examples of ``y = k x₀ + x₁``.
    """
    app = ClientApp()

    def load(message: Message, context: Context) -> tuple[nn.Module, Tensor, Tensor]:
        model = template_net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=True)
        partition = int(context.node_config["partition-id"])
        generator = torch.Generator().manual_seed(partition)
        x = torch.randn(examples(partition), 2, generator=generator)
        return model, x, x @ torch.tensor([[float(partition)], [1.0]])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, x, y = load(message, context)
        optimizer = torch.optim.SGD(model.parameters(), lr=message.content["config"].get("lr", 0.1))
        for _ in range(2):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model, x, y = load(message, context)
        with torch.no_grad():
            loss = mse_loss(model(x), y).item()
        metrics = MetricRecord({"eval_loss": loss, "num-examples": len(x)})
        return Message(content=RecordDict({"metrics": metrics}), reply_to=message)

    return app


Work = Callable[[int, Arrays, Mapping[str, Any]], tuple[Arrays, dict[str, Any]] | RecordDict]


def arithmetic_app(train: Work, evaluate: Work | None = None, seen: list[Message] | None = None) -> ClientApp:
    """A ClientApp of plain functions of (partition, arrays, config), for results worked out by hand.

    They give arrays and metrics, or a whole RecordDict. ``seen`` collects the messages as they came.
    """
    app = ClientApp()

    def answer(message: Message, context: Context, work: Work, arrays_back: bool) -> Message:
        if seen is not None:
            seen.append(message)
        received = {name: array.numpy() for name, array in message.content["arrays"].items()}
        partition = int(context.node_config["partition-id"])
        done = work(partition, received, message.content["config"])
        if isinstance(done, RecordDict):
            return Message(done, reply_to=message)
        arrays, metrics = done
        content = RecordDict({"metrics": MetricRecord(metrics)})
        if arrays_back:
            content["arrays"] = record_of(arrays)
        return Message(content, reply_to=message)

    @app.train()
    def on_train(message: Message, context: Context) -> Message:
        return answer(message, context, train, True)

    @app.evaluate()
    def on_evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, evaluate or _one_example, False)

    @app.query("profile")
    def on_query(message: Message, context: Context) -> Message:
        profile = {"key": f"part-{context.node_config['partition-id']}"}
        return Message(RecordDict({"profile": ConfigRecord(profile)}), reply_to=message)

    return app


def record_of(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Arrays as Flower carries them."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays_of(record: ArrayRecord) -> Arrays:
    """The way back."""
    return {name: array.numpy() for name, array in record.items()}


def same_bits(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    """Whether names, dtypes, shapes and all bits are equal."""
    return left.keys() == right.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (right[n].dtype, right[n].shape, right[n].tobytes()) for n, a in left.items()
    )


def same_rounds(one: Sequence[Mapping[str, np.ndarray]], other: Sequence[Mapping[str, np.ndarray]]) -> bool:
    """Whether two runs have the same arrays after each of as many rounds, at least one."""
    return 0 < len(one) == len(other) and all(map(same_bits, one, other))


def federate(
    strategy: Strategy,
    client_app: ClientApp,
    arrays: Mapping[str, np.ndarray] | ArrayRecord,
    *,
    num_nodes: int,
    start: Callable[..., Result] | None = None,
    **options: Any,
) -> Result:
    """Run a strategy in one process, with Flower's error replies; ``start`` replaces the strategy's own."""
    server_app, results = ServerApp(), []
    initial = arrays if isinstance(arrays, ArrayRecord) else record_of(arrays)

    @server_app.main()
    def main(grid: Any, context: Context) -> None:
        keywords = between(**options) if isinstance(strategy, BaseStrategy) and start is None else options
        results.append((start or type(strategy).start)(strategy, grid, initial, **keywords))

    run_inprocess(server_app, client_app, num_nodes=num_nodes, errors="reply")
    return results[0]


def _one_example(partition: int, arrays: Arrays, config: Mapping[str, Any]) -> tuple[Arrays, dict[str, Any]]:
    return {}, {"num-examples": 1, "loss": 0.0}
