"""The task "social": predict how participants, one after another, rate the behaviour of a robot among people.

A scene is drawn from above with the score that a model predicts for the robot at every place in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, Metrics, NodeData, Task
from fedapps.tasks.social.world.scenes import inside
from fedapps.tasks.tensors import zero_padded
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from .networks import graphs
from .options import Options as SocialOptions
from .profile import MEAN_SCORE, Participants, SocialProfiles
from .scenes import RatedScene

SPACING = 0.25  # metres
INTERACTIONS = 3
CHUNK = 512  # scenes per batch in evaluation


def scene_to_draw(scenes: Sequence[RatedScene]) -> RatedScene:
    """Return the scene to draw: up to three interactions, then the fewest people and objects, then the lowest
    identifier.
    """
    return min(
        scenes,
        key=lambda scene: (
            -min(len(scene.links), INTERACTIONS),
            len(scene.humans) + len(scene.objects),
            scene.identifier,
        ),
    )


def traces(scene: RatedScene, rated: Callable[[Sequence[RatedScene]], np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays that show a scene and the predicted scores.

    Parameters
    ----------
    scene : RatedScene
        The scene; its robot stands at (0, 0).
    rated : callable
        Predicts the scores of scenes.

    Returns
    -------
    dict of str to ndarray
        ``scene.room [K, 2]``: corners. ``scene.humans [H, 3]`` and ``scene.objects [O, 3]``: x, y and orientation in
        metres and half turns. ``scene.links [L, 2]``: interactions, as indices among humans and then objects.
        ``scene.truth``: the recorded score. ``scene.score [gy, gx]``: the score predicted with the robot at ``scene.x
        [gx]`` and ``scene.y [gy]``, multiples of 0.25 m, with unchanged orientation. ``scene.inside [gy, gx]``: whether
        the place is in the room. Scores are 0 to 1.
    """
    room = np.array(scene.room)
    first, last = np.ceil(room.min(axis=0) / SPACING), np.floor(room.max(axis=0) / SPACING)
    x, y = (SPACING * np.arange(low, high + 1) for low, high in zip(first, last, strict=True))
    places = np.stack(np.meshgrid(x, y), axis=-1)
    score = rated([scene.seen_from(*place) for place in places.reshape(-1, 2)])
    return {
        "scene.room": room,
        "scene.humans": np.array(scene.humans).reshape(-1, 3),
        "scene.objects": np.array(scene.objects).reshape(-1, 3),
        "scene.links": np.array(scene.links, dtype=int).reshape(-1, 2) - 1,
        "scene.x": x,
        "scene.y": y,
        "scene.score": score.reshape(len(y), len(x)).clip(0, 1),
        "scene.inside": inside(room, places),
        "scene.truth": np.asarray(scene.score / 100),
    }


class SocialTask(SocialProfiles, Task):
    """Predict the scores of SocNav1 scenes [1]_ in the federated and continual setting of [2]_.

    A node is a robot that meets its participants one after another, one stage each. Examples are graphs of scenes. The
    target is ``score / 100``, predicted at the robot's node, and the loss is the mean squared error.

    Participants rated partly the same scenes, so test scenes of one are training scenes of another. The metrics measure
    how well ratings are predicted, not how well the model generalises to new rooms.

    .. [1] Manso et al., SocNav1: A Dataset to Benchmark and Learn Social Navigation Conventions, Data 5(1):7, 2020.
    .. [2] Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022.
    """

    squared_residuals: ClassVar[int] = 1
    trained_model: ClassVar[str] = "fedapps.tasks.social.trained:SocialTrained"

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raise :class:`DataError` if the option ``participants`` is invalid (:meth:`Options.nodes`)."""
        super().__init__(options)
        self.graphs = graphs(self.options)

    @property
    def validation_metric(self) -> str:
        return "validation.mse"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`fedapps.tasks.base.Task.without_test`; the scene to draw is a test scene."""
        return super().without_test(replace(data, extra={}))

    def build_model(self) -> nn.Module:
        return self.graphs.network()

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        return self._node(self.node(folder, partition, num_partitions))

    def load_all(self, folder: Path) -> NodeData:
        """Read pooled data if the folder has all participants in the options, otherwise the data of a deployed node
        (:meth:`~fedapps.tasks.social.profile.SocialProfiles.whole`).
        """
        return self._node(self.whole(folder))

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

    def padded(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """Pad with zeros: nodes without a type and without edges change nothing."""
        return zero_padded(batches)

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The test error of predicting the mean score of the node's training scenes, in each stage of that stage."""
        return {MEAN_SCORE: [_mean_score(data) for data in self.nodes_in(folder, num_nodes)]}

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return ``validation.mse`` and ``test.mse`` for the splits that exist.

        With ``final``, add the predicted score throughout one test scene
        (:func:`.traces`).
        """
        metrics: Metrics = {}
        for split in ("validation", "test"):
            if count := data.count(split):
                batches = [_moved(batch, model) for batch in self.examples(data, split, CHUNK)]
                squares = sum(len(batch["score"]) * float(self.loss(model, batch)) for batch in batches)
                metrics[f"{split}.mse"] = squares / count
        scene = data.extra.get("scene")
        drawn = traces(scene, partial(self.rated, model)) if final and isinstance(scene, RatedScene) else {}
        return Evaluation(metrics, drawn)

    @torch.no_grad()
    def rated(self, model: nn.Module, scenes: Sequence[RatedScene], batch_size: int = CHUNK) -> np.ndarray:
        """Return the score that ``model`` predicts for each of n scenes, float32 ``[n]``, in (-1, 1); the truth is in
        [0, 1].
        """
        graphs = self.graphs.build(scenes)
        batches = self._trimmed(graphs, torch.arange(len(scenes)), batch_size)
        return torch.cat([_predicted(model, _moved(batch, model)) for batch in batches]).cpu().numpy()

    def _trimmed(self, examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
        for chosen in torch.split(order, batch_size):
            yield self.graphs.trimmed({name: tensor[chosen] for name, tensor in examples.items()})

    def _node(self, node: Participants) -> NodeData:
        scenes = [self.scenes(node.folder, participants) for participants in node.stages]
        loaded = [{split: self._examples(of_split) for split, of_split in stage.items()} for stage in scenes]
        extra = {"scene": scene_to_draw(scenes[-1]["test"])}
        return NodeData(node.key, loaded[0], node.groups, extra, stages=tuple(loaded) if len(loaded) > 1 else ())

    def _examples(self, scenes: Sequence[RatedScene]) -> Batch:
        score = torch.tensor([scene.score / 100 for scene in scenes], dtype=torch.float32)
        return {**self.graphs.build(scenes), "score": score}


def _mean_score(data: NodeData) -> Metrics:
    stages = {f"stage-{number}.": splits for number, splits in enumerate(data.stages, start=1)} or {"": data.splits}
    return {
        f"{stage}test.mse": float(((splits["test"]["score"] - splits["train"]["score"].mean()) ** 2).mean())
        for stage, splits in stages.items()
        if len(splits["test"]["score"]) and len(splits["train"]["score"])
    }


def _predicted(model: nn.Module, batch: Batch) -> Tensor:
    predicted: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "score"})
    return predicted


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}
