"""The task "social": predict how participants, one after another, rate the behaviour of a robot among people."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from sim.social.world import write_world
from tasks.base import Batch, DataError, Evaluation, Metrics, NodeData, Task

from .graphs import graphs
from .options import Options as SocialOptions
from .scenes import RatedScene, participant_files, read_participant
from .score_map import scene_to_draw, traces
from .splits import SPLITS, split_scenes

CHUNK = 512  # scenes per batch in evaluation


class SocialTask(Task):
    """Predict the scores of SocNav1 scenes [1]_ in the federated and continual setting of [2]_.

    A node is a robot that meets its participants one after another, one stage each. Examples are graphs of scenes. The
    target is ``score / 100``, predicted at the robot's node, and the loss is the mean squared error.

    Participants rated partly the same scenes, so test scenes of one are training scenes of another. The metrics measure
    how well ratings are predicted, not how well the model generalises to new rooms.

    .. [1] Manso et al., SocNav1: A Dataset to Benchmark and Learn Social Navigation Conventions, Data 5(1):7, 2020.
    .. [2] Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022.
    """

    name: ClassVar[str] = "social"
    Options: ClassVar[type] = SocialOptions
    headline: ClassVar[tuple[str, ...]] = ("test.mse",)

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raise :class:`DataError` if the option ``participants`` is invalid (:meth:`Options.nodes`)."""
        self.options: SocialOptions = options or SocialOptions()
        self.nodes = self.options.nodes()
        self.graphs = graphs(self.options)

    def build_model(self) -> nn.Module:
        return self.graphs.network()

    @property
    def num_stages(self) -> int:
        return 1 if self.options.together else len(self.nodes[0])

    @property
    def has_world(self) -> bool:
        return self.options.source == "simulated"

    def check_nodes(self, num_nodes: int) -> None:
        if num_nodes != len(self.nodes):
            raise DataError(
                f"participants = {self.options.participants!r} lists the participants of {len(self.nodes)} nodes, but "
                f"num-nodes is {num_nodes}: set num-nodes = {len(self.nodes)}, or list those of {num_nodes} nodes"
            )

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Write a file of ``world_scenes`` scenes for every participant in the options; each rater has a different
        taste.
        Raises
        ------
        DataError
            The source is "recorded", or ``num_nodes`` differs from the number of nodes in the option ``participants``.
        """
        if not self.has_world:
            raise DataError(
                "source = 'recorded' reads ratings by people and cannot be simulated: set data-dir to the folder of "
                "the files, or set source = 'simulated'"
            )
        self.check_nodes(num_nodes)
        participants = [participant for node in self.nodes for participant in node]
        write_world(folder, participants, seed, scenes=self.options.world_scenes)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        self.check_nodes(num_partitions)
        if not 0 <= partition < num_partitions:
            raise DataError(f"node {partition} of {num_partitions}: expected an index from 0 to {num_partitions - 1}")
        return self._node(folder, f"client-{partition + 1}", self._stages(self.nodes[partition]))

    def load_all(self, folder: Path) -> NodeData:
        """Read pooled data if the folder has all participants in the options, otherwise the data of a deployed node.

        Stage s of the pooled data has the s-th participant of every node. A deployed node meets the participants in its
        folder in the order of the options, and then all others by name.

        Raises
        ------
        DataError
            The number of files differs from the number of stages.
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
                f"{folder}: expected {self.num_stages} files <participant>.json, one for each stage, or the files of "
                f"all participants ({self.options.participants}); found {found}. Add or remove files, or change the "
                "options participants and together"
            )
        return self._node(folder, "+".join(own), stages)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of the score, which ranges from 0 to 1."""
        return mse_loss(_predicted(model, batch), batch["score"])

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield the same batches as other tasks, each padded only to its own largest graph, which halves the cost of a
        step.
        """
        return self._trimmed(data.splits[split], torch.randperm(data.count(split)), batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield graphs of similar size together, which minimises padding."""
        order = self.graphs.sizes(data.splits[split]).argsort(stable=True)
        return self._trimmed(data.splits[split], order, batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return ``validation.mse`` and ``test.mse`` for the splits that exist.

        With ``final``, add the predicted score throughout one test scene (:func:`~tasks.social.score_map.traces`).
        """
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if count := data.count(split):
                batches = [_moved(batch, model) for batch in self.examples(data, split, CHUNK)]
                squares = sum(len(batch["score"]) * float(self.loss(model, batch)) for batch in batches)
                metrics[f"{split}.mse"] = squares / count
        scene = data.extra.get("scene")
        drawn = traces(scene, partial(self._rated, model)) if final and isinstance(scene, RatedScene) else {}
        return Evaluation(metrics, drawn)

    def _rated(self, model: nn.Module, scenes: Sequence[RatedScene]) -> np.ndarray:
        """The score that ``model`` predicts for each scene."""
        graphs = self.graphs.build(scenes)
        batches = self._trimmed(graphs, torch.arange(len(scenes)), CHUNK)
        return torch.cat([_predicted(model, _moved(batch, model)) for batch in batches]).cpu().numpy()

    def _trimmed(self, examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
        for chosen in torch.split(order, batch_size):
            yield self.graphs.trimmed({name: tensor[chosen] for name, tensor in examples.items()})

    def _stages(self, participants: Sequence[str]) -> list[Sequence[str]]:
        return [participants] if self.options.together else [[participant] for participant in participants]

    def _node(self, folder: Path, key: str, stages: Sequence[Sequence[str]]) -> NodeData:
        scenes = [self._scenes(folder, participants) for participants in stages]
        loaded = [{split: self._examples(of_split) for split, of_split in stage.items()} for stage in scenes]
        groups = {"participants": "+".join(participant for stage in stages for participant in stage)}
        extra = {"scene": scene_to_draw(scenes[-1]["test"])}
        return NodeData(key, loaded[0], groups, extra, stages=tuple(loaded) if len(loaded) > 1 else ())

    def _scenes(self, folder: Path, participants: Sequence[str]) -> Mapping[str, Sequence[RatedScene]]:
        """The splits of several participants together."""
        chosen = self.options
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
        return {split: [scene for part in parts for scene in part[split]] for split in SPLITS}

    def _examples(self, scenes: Sequence[RatedScene]) -> Batch:
        score = torch.tensor([scene.score / 100 for scene in scenes], dtype=torch.float32)
        return {**self.graphs.build(scenes), "score": score}


def _predicted(model: nn.Module, batch: Batch) -> Tensor:
    predicted: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "score"})
    return predicted


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _index(named: Sequence[str], participant: str) -> int:
    return named.index(participant) if participant in named else len(named)
