"""The task "social": how much a robot disturbs the people around it, as one participant after another rates it."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from tasks.base import Batch, Evaluation, Metrics, NodeData, Task

from .graphs import graphs
from .options import Options as SocialOptions
from .profile import Participants, SocialProfiles
from .scenes import Scene
from .score_map import telling, traces

CHUNK = 512  # scenes that are evaluated at once


class SocialTask(SocialProfiles, Task):
    """Predict the score of SocNav1 scenes [1]_, in the federated and continual setting of [2]_.

    A node is a robot that meets its participants one after another, one stage each. Examples are graphs of scenes;
    the target is ``score / 100``, read at the robot's node, and the loss the mean squared error.

    Participants rated partly the same scenes, so test scenes of one are training scenes of another: the metrics say
    how well raters are predicted, not how well unseen rooms are.

    .. [1] Manso et al., SocNav1: A Dataset to Benchmark and Learn Social Navigation Conventions, Data 5(1):7, 2020.
    .. [2] Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022.
    """

    headline: ClassVar[tuple[str, ...]] = ("test.mse",)

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raises :class:`DataError` when the option ``participants`` makes no sense (:meth:`Options.nodes`)."""
        super().__init__(options)
        self.graphs = graphs(self.options)

    def build_model(self) -> nn.Module:
        return self.graphs.network()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return self._node(self.node(folder, partition, num_partitions))

    def load_all(self, folder: Path) -> NodeData:
        """Pooled data where the folder has every participant of the option, else those of a deployed node."""
        return self._node(self.whole(folder))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean squared error of the score, which runs from 0 to 1."""
        return mse_loss(_predicted(model, batch), batch["score"])

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """The same batches as any task's, each padded only to its own largest graph, as steps then cost half."""
        return self._trimmed(data.splits[split], torch.randperm(data.count(split)), batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Graphs of like size together, which takes the least padding."""
        order = self.graphs.sizes(data.splits[split]).argsort(stable=True)
        return self._trimmed(data.splits[split], order, batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """``validation.mse`` and ``test.mse`` of the splits that exist.

        ``final`` adds the learned score throughout one test scene (:func:`~tasks.social.score_map.traces`).
        """
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if count := data.count(split):
                batches = [_moved(batch, model) for batch in self.examples(data, split, CHUNK)]
                squares = sum(len(batch["score"]) * float(self.loss(model, batch)) for batch in batches)
                metrics[f"{split}.mse"] = squares / count
        scene = data.extra.get("scene")
        drawn = traces(scene, partial(self._rated, model)) if final and isinstance(scene, Scene) else {}
        return Evaluation(metrics, drawn)

    def _rated(self, model: nn.Module, scenes: Sequence[Scene]) -> np.ndarray:
        """What ``model`` predicts for each of ``scenes``."""
        graphs = self.graphs.build(scenes)
        batches = self._trimmed(graphs, torch.arange(len(scenes)), CHUNK)
        return torch.cat([_predicted(model, _moved(batch, model)) for batch in batches]).cpu().numpy()

    def _trimmed(self, examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
        for chosen in torch.split(order, batch_size):
            yield self.graphs.trimmed({name: tensor[chosen] for name, tensor in examples.items()})

    def _node(self, node: Participants) -> NodeData:
        scenes = [self.scenes(node.folder, participants) for participants in node.stages]
        loaded = [{split: self._examples(of_split) for split, of_split in stage.items()} for stage in scenes]
        extra = {"scene": telling(scenes[-1]["test"])}
        return NodeData(node.key, loaded[0], node.groups, extra, stages=tuple(loaded) if len(loaded) > 1 else ())

    def _examples(self, scenes: Sequence[Scene]) -> Batch:
        score = torch.tensor([scene.score / 100 for scene in scenes], dtype=torch.float32)
        return {**self.graphs.build(scenes), "score": score}


def _predicted(model: nn.Module, batch: Batch) -> Tensor:
    predicted: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "score"})
    return predicted


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}
