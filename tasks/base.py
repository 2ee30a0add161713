"""What a learning problem must offer to be federated: data, model, loss, metrics. No Flower here."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .profiles import DataError as DataError
from .profiles import NodeProfile, TaskProfiles

Batch = Mapping[str, Tensor]
Metrics = dict[str, float | list[float]]
MetricRule = Literal["weighted", "uniform", "geometric"]


@dataclass(frozen=True)
class NodeData:
    """What one node holds for a task. It never leaves the node.

    ``splits`` maps ``"train"``, ``"validation"`` and ``"test"`` (those that exist) to tensors with a common
    first dimension, the examples. ``key`` is stable across runs; ``groups`` are labels for sampling and
    reports. ``extra`` holds whatever else the task needs to evaluate (initial states, a driver's style).
    ``stages`` are the splits of what the node meets one after another, where the task has several stages (continual
    learning); ``splits`` are then those of the first.
    """

    key: str
    splits: Mapping[str, Batch]
    groups: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)
    stages: Sequence[Mapping[str, Batch]] = ()

    def at(self, stage: int) -> "NodeData":
        """The data of one stage, counted from 0. Raises :class:`DataError` when the node does not have it."""
        if not 0 <= stage < len(self.stages):
            raise DataError(f"node {self.key} has {len(self.stages)} stages of data: there is no stage {stage + 1}")
        return replace(self, splits=self.stages[stage], stages=())

    def count(self, split: str) -> int:
        """Number of examples in a split, 0 where the split does not exist."""
        tensors = self.splits.get(split)
        return 0 if not tensors else len(next(iter(tensors.values())))

    def profile(self) -> NodeProfile:
        """Who the node is, as the server is told."""
        return NodeProfile(self.key, self.count("train"), self.groups)


@dataclass(frozen=True)
class Evaluation:
    """``metrics`` are reported to the server, ``traces`` (drawings, rollouts) stay in the node's folder."""

    metrics: Metrics
    traces: Mapping[str, np.ndarray] = field(default_factory=dict)


class Task(TaskProfiles):
    """A learning problem. One instance serves all nodes of a process, so it holds no node's data.

    Randomness comes from torch's global generator, which the caller seeds for each call
    (:func:`tasks.seeding.torch_seed`); a task keeps no generator of its own.
    """

    #: The metrics of the short table, the most important first.
    headline: ClassVar[tuple[str, ...]]
    #: Whether :meth:`loss` runs under ``torch.func.vmap``, which data-dependent control flow and recurrent layers do
    #: not; where not, gradients of single examples are taken one by one.
    vectorises: ClassVar[bool] = True
    #: Metrics whose mean over nodes is not the weighted one: "uniform" counts every node alike, "geometric" is the
    #: geometric mean of nodes that count alike.
    metric_means: ClassVar[Mapping[str, MetricRule]] = {}
    #: Patterns of parameters that are never trained and that every node makes for itself: they neither travel nor are
    #: they kept.
    fixed: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A freshly initialised model on the CPU, from torch's global generator."""

    def build_model_for(self, data: NodeData) -> nn.Module:
        """The model of one node, like :meth:`build_model`'s but for private parameters, which may fit its data."""
        return self.build_model()

    @property
    def num_stages(self) -> int:
        """How many stages of data every node meets one after another; 1 for all but continual learning."""
        return 1

    @property
    def longest_epoch(self) -> int:
        """The most examples that one epoch goes through; 0 where it goes through all there are, as in most tasks."""
        return 0

    @property
    def can_collect(self) -> bool:
        """Whether :meth:`collect` can gather new experience; most tasks only learn from given data."""
        return False

    def check_nodes(self, num_nodes: int) -> None:
        """Raises :class:`DataError` for options that so many nodes cannot be made of, before any data are looked at."""
        return

    def sizes(self, data: NodeData) -> Mapping[str, int]:
        """How much a node has, by the names of what is counted: examples of each split, where the task says no more."""
        return {f"{split} examples": data.count(split) for split in data.splits}

    def remarks(self, folder: Path, num_nodes: int) -> Sequence[str]:
        """What else there is to say of the data of so many nodes, in lines of text."""
        return ()

    @abstractmethod
    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """Read the data of node ``partition`` of ``num_partitions`` from ``folder``.

        Raises :class:`DataError` when files are missing or malformed, or the folder holds data for fewer nodes.
        """

    @abstractmethod
    def load_all(self, folder: Path) -> NodeData:
        """Read everything in ``folder`` as one node: the pooled data of Cloud, or a deployed node's own."""

    def load_own(self, folder: Path) -> NodeData:
        """Read a deployed node's own folder. Raises :class:`DataError` where that needs to see other nodes' data."""
        return self.load_all(folder)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        """That of the loaded data, where a task does not find it out with less work."""
        return self.load_node(folder, partition, num_partitions).profile()

    def own_profile(self, folder: Path) -> NodeProfile:
        """As :meth:`node_profile`."""
        return self.load_own(folder).profile()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean training loss over a batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Test metrics named ``<split>.<metric>``. ``final`` asks for the costly ones too (closed loop)."""

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """One epoch over a split in a random order (torch's global generator); the last batch may be smaller."""
        tensors = data.splits[split]
        order = torch.randperm(data.count(split))
        for chosen in torch.split(order, batch_size):
            yield {name: tensor[chosen] for name, tensor in tensors.items()}

    def training_batches(self, model: nn.Module, data: NodeData, batch_size: int) -> Iterator[Batch]:
        """One epoch for training ``model``, whose weights of the moment may decide what is in the batches."""
        return self.batches(data, "train", batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Every example of a split once, for sums over all of them: in an order that is fast, without a draw."""
        tensors = data.splits[split]
        for start in range(0, data.count(split), batch_size):
            yield {name: tensor[start : start + batch_size] for name, tensor in tensors.items()}

    def collect(self, model: nn.Module, data: NodeData, *, seed: int) -> Mapping[str, np.ndarray]:
        """Gather new experience with ``model`` in the loop, as arrays that :meth:`with_collected` understands.

        Raises ``NotImplementedError`` for a task that only learns from given data.
        """
        raise NotImplementedError(f"task {self.name!r} cannot collect data of its own")

    def with_collected(self, data: NodeData, collected: Mapping[str, np.ndarray]) -> NodeData:
        """``data`` with collected experience added to its training split."""
        raise NotImplementedError(f"task {self.name!r} cannot collect data of its own")
