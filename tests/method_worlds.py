"""Tiny tasks in which methods are worked out by hand, and the app's runs of methods on them in one process."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.state import DiskState
from fedapps.sim.inprocess import run_inprocess
from fedapps.strategies.records import Snapshot
from fedapps.tasks.base import Batch, Evaluation, NodeData, Task
from fedapps.tasks.profiles import LowRank, ModelRoles
from flwr.app import Context, Message, RecordDict
from torch import Tensor, nn
from torch.nn.functional import batch_norm, cross_entropy

from fedapps.app.client_app import app as client_app
from fedapps.app.server_app import app as server_app
from fedapps.config.parsing import parse
from fedapps.launch.inputs import resolve
from fedapps.registry import tasks
from fedapps.registry.methods import method_class, method_names
from fedapps.runs.checkpoints import DiskCheckpoints
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import RefusedNodesError

Arrays = dict[str, np.ndarray]
#: Curvatures and optima of the nodes: f_i = ½ a_i (θ - b_i)².
Q = ((1.0, 2.0), (3.0, -1.0))
SECOND = ((1.0, 1.0), (3.0, -1.0))
#: Keys without which a method does not run here.
MORE: dict[str, dict[str, Any]] = {
    "h-fl": {"h-fl.groups": "parity", "h-fl.intervals": "2"},
    "clustered": {"clustered.clusters": 2},
    "fedvc": {"num_nodes": 3},  # draws one of two nodes alone
}
#: The methods of nodes that run on any task.
METHODS = [name for name in method_names() if not method_class(name).task and method_class(name)().role != "reference"]
#: Changes the reply of a node from 0, given the type of its message.
Spoil = Callable[[str, int, RecordDict], None]


class _Values(nn.Module):
    def __init__(self, **values: float) -> None:
        super().__init__()
        for name, value in values.items():
            setattr(self, name, nn.Parameter(torch.tensor([value], dtype=torch.float64)))


class _Tiny(Task):
    """A task whose nodes are made, not read."""

    @dataclass(frozen=True)
    class Options:
        """None."""

    headline: ClassVar[tuple[str, ...]] = ("test.loss",)

    def node(self, index: int) -> NodeData:
        raise NotImplementedError

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        (folder / "made").touch()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return self.node(partition)

    def load_all(self, folder: Path) -> NodeData:
        parts = [self.node(index).splits for index in range(2)]
        joined = {split: {n: torch.cat([p[split][n] for p in parts]) for n in parts[0][split]} for split in parts[0]}
        return NodeData("all", joined)

    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        with torch.no_grad():
            return Evaluation({"test.loss": float(self.loss(model, data.splits["test"]))})


class Quadratics(_Tiny):
    """Node i minimises ½ a_i (θ - b_i)², float64; all its examples are the same."""

    name: ClassVar[str] = "quadratics"
    #: Subclasses change these: (a_i, b_i) of the nodes, their numbers of examples, and the start.
    nodes: ClassVar[tuple[tuple[float, float], ...]] = Q
    sizes: ClassVar[tuple[int, ...]] = (2, 2)
    start: ClassVar[float] = 0.0

    def node(self, index: int) -> NodeData:
        (a, b), count = self.nodes[index], self.sizes[index]
        split = {
            "a": torch.full((count, 1), a, dtype=torch.float64), "b": torch.full((count, 1), b, dtype=torch.float64)
        }  # fmt: skip
        return NodeData(f"node-{index}", {"train": split, "test": split})

    def build_model(self) -> nn.Module:
        return _Values(theta=self.start)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (0.5 * batch["a"] * (model.theta - batch["b"]) ** 2).mean()


class SecondWorld(Quadratics):
    """The optima are 1 and -1."""

    name: ClassVar[str] = "second-world"
    nodes: ClassVar[tuple[tuple[float, float], ...]] = SECOND


class BodyAndHead(Quadratics):
    """Node i minimises ½ a_i (u + v - b_i)² + ½ v², with the body ``body.u`` and the head ``head.v``."""

    name: ClassVar[str] = "body-and-head"
    head_start: ClassVar[float] = 0.0

    @property
    def roles(self) -> ModelRoles:
        return ModelRoles(head=("head.*",), body=("body.*",))

    def build_model(self) -> nn.Module:
        return nn.ModuleDict({"body": _Values(u=self.start), "head": _Values(v=self.head_start)})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        u, v = model["body"].u, model["head"].v
        return (0.5 * batch["a"] * (u + v - batch["b"]) ** 2 + 0.5 * v**2).mean()


class Adapters(Quadratics):
    """Node i minimises ½ a_i (W + B A - b_i)² with 1 x 1 matrices; W = 0 is frozen, A starts at 1, B at 0."""

    name: ClassVar[str] = "adapters"
    factors: ClassVar[LowRank] = LowRank("layer.a", "layer.b", "layer.w")

    @property
    def fixed(self) -> tuple[str, ...]:
        return ("layer.w",)

    @property
    def roles(self) -> ModelRoles:
        return ModelRoles(body=("layer.a", "layer.b"), factors=self.factors)

    def build_model(self) -> nn.Module:
        layer = _Values(a=1.0, b=0.0, w=0.0)
        for name, value in layer.named_parameters():
            setattr(layer, name, nn.Parameter(value.detach()[None], requires_grad=name != "w"))
        return nn.ModuleDict({"layer": layer})

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        layer = model["layer"]
        product = layer.w + self.factors.scale * layer.b @ layer.a
        return (0.5 * batch["a"] * (product - batch["b"]) ** 2).mean()


class _BatchNorm(nn.BatchNorm1d):
    """One example, which PyTorch refuses, is normalised by the running statistics, as in the app's own networks."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and len(input) == 1:
            return batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)


class _Scale(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Network(nn.Module):
    """Three classes of points in the plane."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), _BatchNorm(4), nn.Tanh(), _Scale())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Points(_Tiny):
    """Points of three classes, with other frequencies on each node: a task that has all roles."""

    name: ClassVar[str] = "points"
    headline: ClassVar[tuple[str, ...]] = ("test.loss",)

    @property
    def roles(self) -> ModelRoles:
        return ModelRoles(head=("head.*",), body=("body.*",), features=True)

    @property
    def num_classes(self) -> int:
        return 3

    def _splits(self, index: int) -> dict[str, dict[str, Tensor]]:
        random = np.random.default_rng(index)
        label = (random.random(16) ** (1 + index) * 3).astype(np.int64)
        x = (random.normal(size=(16, 2)) + label[:, None]).astype(np.float32)
        columns = {"x": torch.from_numpy(x), "label": torch.from_numpy(label)}
        cuts = {"train": slice(0, 8), "validation": slice(8, 12), "test": slice(12, 16)}
        return {split: {name: column[cut] for name, column in columns.items()} for split, cut in cuts.items()}

    def node(self, index: int) -> NodeData:
        return NodeData(f"node-{index}", self._splits(index), {"parity": str(index % 2)})

    def build_model(self) -> nn.Module:
        return Network()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch["x"]), batch["label"])


class _Adapted(nn.Module):
    """A frozen linear layer with an adapter of rank 2."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * x @ self.a.T @ self.b.T


class AdaptedPoints(Points):
    """The same with an adapter in the first layer, which is frozen."""

    name: ClassVar[str] = "adapted-points"

    @property
    def fixed(self) -> tuple[str, ...]:
        return ("body.0.base.*",)

    @property
    def roles(self) -> ModelRoles:
        body, factors = ("body.0.[ab]", "body.[13].*"), LowRank("body.*.a", "body.*.b", "body.*.base.weight", 2.0)
        return ModelRoles(head=("head.*",), body=body, features=True, factors=factors)

    def build_model(self) -> nn.Module:
        model = Network()
        model.body[0] = _Adapted(model.body[0])
        return model


class StagedPoints(Points):
    """The same in two stages."""

    name: ClassVar[str] = "staged-points"

    @property
    def num_stages(self) -> int:
        return 2

    def node(self, index: int) -> NodeData:
        stages = tuple(self._splits(index + 3 * stage) for stage in range(2))
        return NodeData(f"node-{index}", stages[0], {"parity": str(index % 2)}, stages=stages)


def world_of(method: str) -> type[Task]:
    """The task that has what the method needs."""
    kind = method_class(method)
    return StagedPoints if kind.needs_stages else AdaptedPoints if "factors" in kind.needs else Points


@dataclass
class Rounds:
    """What a run left, by round from 0 and by node from 0.

    ``arrays`` are the shared arrays after each round and ``server`` the strategy's state, such as
    ``_sum.theta``. ``kept`` are the private arrays and the memory (``memory.*``) of each node, as its
    last training round left them. ``messages`` are (type, node, message, reply) in their order.
    ``config`` is the run config of the nodes.
    """

    folder: RunFolder
    arrays: list[Arrays] = field(default_factory=list)
    server: list[Arrays] = field(default_factory=list)
    kept: dict[int, Arrays] = field(default_factory=dict)
    messages: list[tuple[str, int, RecordDict, RecordDict]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    def values(self, name: str = "theta") -> list[float]:
        """A shared array of one number, after each round."""
        return [float(arrays[name].item()) for arrays in self.arrays]

    def memory(self, name: str) -> list[float]:
        """A number in the memory of each node."""
        return [float(self.kept[node][f"memory.{name}"][0]) for node in sorted(self.kept)]

    def private(self, name: str) -> list[float]:
        """A private parameter of one number, on each node."""
        return [float(self.kept[node][name].item()) for node in sorted(self.kept)]


class PowerCutError(RuntimeError):
    """The server ends here on demand."""


def run_method(
    method: str,
    task: type[Task] = Quadratics,
    *,
    rounds: int = 2,
    refused: Collection[tuple[int, int]] = (),
    absent: Collection[tuple[int, int]] = (),
    cut: int = 0,
    folder: Path | None = None,
    spoil: Spoil | None = None,
    **keys: Any,
) -> Rounds:
    """Run a method in one process: full-batch SGD, learning rate .1, 2 steps a round, equal weights, two nodes.

    Parameters
    ----------
    method : str
        A label, such as ``"fedprox(mu=0.5)"``.
    task : type
        A task that needs no registration.
    rounds : int
    refused, absent : collections of (round from 1, node from 0)
        The server refuses the TRAIN reply of the node; the node does not get the TRAIN message.
    cut : int
        The server breaks down before it has recorded this round, and resumes the run; 0 = never.
    folder : Path, optional
        Keeps the run.
    spoil : function, optional
        Changes what the nodes send.
    **keys
        Keys of the run config, with underscores for hyphens.
    """
    given = {
        "task": task.name, "methods": method, "rounds": rounds, "num-nodes": 2, "optimizer": "sgd", "steps": 2,
        "learning-rate": 0.1, "batch-size": 64, "weighting": "uniform", "evaluate-every": 1, "collect-after": 0,
        "name": "run",
    } | {key.replace("_", "-"): value for key, value in keys.items()}  # fmt: skip
    with TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch, registered(task):
        patch.setattr("fedapps.app.server_app.write_report", lambda folder: folder)
        place = folder or Path(scratch)
        given.setdefault("cache-dir", str(place / "worlds"))
        found = Rounds(RunFolder(place / "run", ""))
        _watch(patch, found)
        if cut:
            with pytest.MonkeyPatch.context() as broken:
                _break(broken, cut)
                with pytest.raises(PowerCutError):
                    _run(given, place, found, set(refused), set(absent), spoil)
            given["resume"] = True
        with suppress(*([RefusedNodesError] if refused or absent else [])):  # of a node that was never used
            _run(given, place, found, set(refused), set(absent), spoil)
    return found


@contextmanager
def registered(task: type[Task]) -> Iterator[None]:
    """Let the task be found by its name, and no other."""
    entry = SimpleNamespace(name=task.name, value=f"{task.__module__}:{task.__name__}", group=tasks.GROUP, module="")
    entry.load = lambda: task
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "plugins", lambda group: {task.name: entry})
        tasks.task_class.cache_clear()
        yield
    tasks.task_class.cache_clear()


def _run(
    given: Mapping[str, Any],
    place: Path,
    found: Rounds,
    refused: set[tuple[int, int]],
    absent: set[tuple[int, int]],
    spoil: Spoil | None,
) -> None:
    def answered(message: Message, context: Context) -> Message:
        node, kind = int(context.node_config["partition-id"]), message.metadata.message_type
        at = (message.content["config"]["server-round"] if kind in ("train", "evaluate") else 0, node)
        if kind == "train" and at in absent:
            raise ConnectionError("the node is away")
        sent = message.content.copy()
        reply = client_app(message, context)
        if reply.has_content():
            found.messages.append((kind, node, sent, reply.content.copy()))
        if kind == "train" and at in refused:
            reply.content["metrics"]["num-examples"] = -1
        if spoil and reply.has_content():
            spoil(kind, node, reply.content)
        return reply

    config = parse(resolve(dict(given), str(place)))
    found.config = config.flat()
    run_inprocess(
        server_app, answered, num_nodes=config.run.num_nodes, run_config=found.config, errors="reply",
        batch=config.run.node_batch,
    )  # fmt: skip


def _watch(patch: pytest.MonkeyPatch, found: Rounds) -> None:
    """Note what the server and the nodes store."""
    save, keep = DiskCheckpoints.save, DiskState.save

    def saved(self: DiskCheckpoints, snapshot: Snapshot, *, best: bool) -> int:
        durable_round = save(self, snapshot, best=best)
        shared_names = {name for name in snapshot.arrays if name.startswith("shared.")}
        found.arrays.append({name.removeprefix("shared."): snapshot.arrays[name] for name in sorted(shared_names)})
        found.server.append({n.removeprefix("state."): a for n, a in snapshot.arrays.items() if n not in shared_names})
        return durable_round

    def kept(self: DiskState, server_round: int, arrays: Arrays, *more: Any, **named: Any) -> None:
        keep(self, server_round, arrays, *more, **named)
        if (number := self.folder.name.rpartition("-")[2]).isdecimal():  # and not the errors of compression
            found.kept[int(number)] = dict(arrays)

    patch.setattr(DiskCheckpoints, "save", saved)
    patch.setattr(DiskState, "save", kept)


def _break(patch: pytest.MonkeyPatch, cut: int) -> None:
    record = RunFolder.record

    def broken(self: RunFolder, name: str, stage: str, report: Any) -> None:
        if report.round == cut:
            raise PowerCutError
        record(self, name, stage, report)

    patch.setattr(RunFolder, "record", broken)
