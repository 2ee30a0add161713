"""The task "social": how much a robot disturbs the people around it, as one participant after another rates it."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from sim.social.world import write_world
from tasks.base import Batch, DataError, Evaluation, Metrics, NodeData, Task

from .graphs import compact_graphs
from .networks import GraphConvolutions
from .options import Options as SocialOptions
from .scenes import Scene, participant_files, read_participant
from .splits import SPLITS, split_scenes

#: What the network of each graph takes, in the order of its arguments.
INPUTS = {"compact": ("nodes", "adjacency"), "relational": ("nodes", "sources", "targets", "relations", "weights")}
CHUNK = 512  # scenes that are evaluated at once


class SocialTask(Task):
    """Predict the score of SocNav1 scenes [1]_, in the federated and continual setting of [2]_.

    A node is a robot that meets its participants one after another, one stage each. Examples are graphs of scenes;
    the target is ``score / 100``, read at the robot's node, and the loss the mean squared error.

    Participants rated partly the same scenes, so test scenes of one are training scenes of another: the metrics say
    how well raters are predicted, not how well unseen rooms are.

    .. [1] Manso et al., SocNav1: A Dataset to Benchmark and Learn Social Navigation Conventions, Data 5(1):7, 2020.
    .. [2] Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022.
    """

    name: ClassVar[str] = "social"
    Options: ClassVar[type] = SocialOptions
    headline: ClassVar[tuple[str, ...]] = ("test.mse",)

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raises :class:`DataError` when the option ``participants`` makes no sense (:meth:`Options.nodes`)."""
        self.options: SocialOptions = options or SocialOptions()
        self.nodes = self.options.nodes()

    def build_model(self) -> nn.Module:
        return GraphConvolutions(self.options.hidden, self.options.layers)

    @property
    def num_stages(self) -> int:
        return 1 if self.options.together else len(self.nodes[0])

    @property
    def has_world(self) -> bool:
        return self.options.source == "simulated"

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """A file of ``world_scenes`` scenes for every participant of the option, all of different taste.

        Raises :class:`DataError` for the source "recorded", and when ``num_nodes`` is not the number of nodes in the
        option ``participants``.
        """
        if not self.has_world:
            raise DataError(
                "source 'recorded' is rated by people, not simulated: name the folder of its files as data-dir, or "
                "set source = 'simulated'"
            )
        self._check_nodes(num_nodes)
        participants = [participant for node in self.nodes for participant in node]
        write_world(folder, participants, seed, scenes=self.options.world_scenes)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        self._check_nodes(num_partitions)
        if not 0 <= partition < num_partitions:
            raise DataError(f"node {partition} of {num_partitions}: expected one from 0 to {num_partitions - 1}")
        return self._node(folder, f"client-{partition + 1}", self._stages(self.nodes[partition]))

    def load_all(self, folder: Path) -> NodeData:
        """Pooled data where the folder has every participant of the option, else those of a deployed node.

        Stage s of the pooled data has the s-th participant of every node. A deployed node meets the participants
        in its folder in the order of the option, others after them by name. Raises :class:`DataError` when the
        node's files are not as many as its stages.
        """
        files = participant_files(folder)
        named = [participant for node in self.nodes for participant in node]
        if set(named) <= set(files):
            pooled = [named] if self.options.together else list(zip(*self.nodes, strict=True))
            return self._node(folder, "pooled", pooled)
        own = sorted(files, key=lambda participant: (participant not in named, _index(named, participant), participant))
        stages = self._stages(own)
        if not own or len(stages) != self.num_stages:
            found = ", ".join(path.name for path in files.values()) or "none"
            raise DataError(
                f"{folder}: expected {self.num_stages} files <participant>.json, one for each of a node's stages, or "
                f"those of all participants ({self.options.participants}); found {found}. Add or remove files, or "
                "adapt the options participants and together"
            )
        return self._node(folder, "+".join(own), stages)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean squared error of the score, which runs from 0 to 1."""
        return mse_loss(self._predicted(model, batch), batch["score"])

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """The same batches as any task's, each padded only to its own largest graph, as steps then cost half."""
        order = torch.randperm(data.count(split))
        yield from _trimmed({name: tensor[order] for name, tensor in data.splits[split].items()}, batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Graphs of like size together, which takes the least padding."""
        order = _sizes(data.splits[split]).argsort(stable=True)
        yield from _trimmed({name: tensor[order] for name, tensor in data.splits[split].items()}, batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """``validation.mse`` and ``test.mse`` of the splits that exist."""
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if data.count(split):
                metrics[f"{split}.mse"] = float(
                    mse_loss(self._scores(model, data.splits[split]), data.splits[split]["score"])
                )
        return Evaluation(metrics)

    def _scores(self, model: nn.Module, examples: Batch) -> Tensor:
        return torch.cat([self._predicted(model, batch) for batch in _trimmed(examples, CHUNK)])

    def _predicted(self, model: nn.Module, batch: Batch) -> Tensor:
        predicted: Tensor = model(*(batch[name] for name in INPUTS[self.options.graph]))
        return predicted

    def _graphs(self, scenes: Sequence[Scene]) -> dict[str, Tensor]:
        return compact_graphs(scenes, self.options.geometry)

    def _check_nodes(self, num_nodes: int) -> None:
        if num_nodes != len(self.nodes):
            raise DataError(
                f"participants = {self.options.participants!r} are those of {len(self.nodes)} nodes, but num-nodes is "
                f"{num_nodes}: set num-nodes = {len(self.nodes)}, or name the participants of {num_nodes} nodes"
            )

    def _stages(self, participants: Sequence[str]) -> list[Sequence[str]]:
        return [participants] if self.options.together else [[participant] for participant in participants]

    def _node(self, folder: Path, key: str, stages: Sequence[Sequence[str]]) -> NodeData:
        chosen = self.options
        loaded: list[Mapping[str, Batch]] = []
        for participants in stages:
            parts = [
                split_scenes(
                    read_participant(folder, participant),
                    participant,
                    seed=chosen.split_seed,
                    train_fraction=chosen.train_fraction,
                    augment=chosen.augment,
                )
                for participant in participants
            ]
            scenes = {split: [scene for part in parts for scene in part[split]] for split in SPLITS}
            loaded.append({split: self._examples(chosen) for split, chosen in scenes.items()})
        groups = {"participants": "+".join(participant for stage in stages for participant in stage)}
        return NodeData(key, loaded[0], groups, stages=tuple(loaded) if len(loaded) > 1 else ())

    def _examples(self, scenes: Sequence[Scene]) -> Batch:
        score = torch.tensor([scene.score / 100 for scene in scenes], dtype=torch.float32)
        return {**self._graphs(scenes), "score": score}


def _index(named: Sequence[str], participant: str) -> int:
    return named.index(participant) if participant in named else len(named)


def _sizes(examples: Batch) -> Tensor:
    return (examples["nodes"] != 0).any(dim=2).sum(dim=1)


def _trimmed(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Slices of ``examples``, without the padding that none of a slice's graphs needs."""
    counts = _sizes(examples)
    for start in range(0, len(counts), batch_size):
        chosen = slice(start, start + batch_size)
        size = int(counts[chosen].max())
        yield {
            "nodes": examples["nodes"][chosen, :size],
            "adjacency": examples["adjacency"][chosen, :size, :size],
            "score": examples["score"][chosen],
        }
