"""The task "social": predict how participants, one after another, rate the behaviour of a robot among people.

A scene is drawn from above with the score that a model predicts for the robot at every place in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, MetricRule, Metrics, NodeData, Task
from fedapps.tasks.profiles import ModelRoles, NodeProfile, Secret, check_partition
from fedapps.tasks.social.world import inside, write_world
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedapps.base.errors import DataError

from .graphs import COMPACT_KINDS
from .networks import Options as SocialOptions
from .networks import graphs
from .scenes import SPLITS, RatedScene, participant_files, read_participant, split_scenes

#: The floor of a comparison: the mean score of a robot's training scenes.
MEAN_SCORE = "mean score"


@dataclass(frozen=True)
class Participants:
    """The participants that a node meets.

    Attributes
    ----------
    folder : Path
        The folder with their files.
    key : str
        The node's key.
    stages : sequence of sequence of str
        The participants of each stage.
    """

    folder: Path
    key: str
    stages: Sequence[Sequence[str]]

    @property
    def groups(self) -> dict[str, str]:
        """The label ``participants``: all participants, in their order."""
        return {"participants": "+".join(participant for stage in self.stages for participant in stage)}


SPACING = 0.25  # metres
INTERACTIONS = 3
CHUNK = 512  # scenes per batch in evaluation
_REACH = 7.0  # metres from the robot within which an audit searches people and objects


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
    score = rated([scene.seen_from(*position) for position in places.reshape(-1, 2)])
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


class SocialTask(Task):
    """Predict the scores of SocNav1 scenes [1]_ in the federated and continual setting of [2]_.

    A node is a robot that meets its participants one after another, one stage each. Examples are graphs of scenes. The
    target is ``score / 100``, predicted at the robot's node, and the loss is the mean squared error.

    Participants rated partly the same scenes, so test scenes of one are training scenes of another. The metrics measure
    how well ratings are predicted, not how well the model generalises to new rooms. They are plain means over nodes:
    weights by the examples of a stage would differ from stage to stage, and backward transfer compares stages.

    .. [1] Manso et al., SocNav1: A Dataset to Benchmark and Learn Social Navigation Conventions, Data 5(1):7, 2020.
    .. [2] Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022.
    """

    name: ClassVar[str] = "social"
    Options: ClassVar[type] = SocialOptions
    options: SocialOptions
    headline: ClassVar[tuple[str, ...]] = ("test.mse",)
    files: ClassVar[Mapping[str, str]] = {
        "`PARTICIPANT.json`": (
            "a scene per line, as in SocNav1: `score` (0 to 100), `room`, `humans`, `objects`, `links`, "
            "`robot` (cm, degrees)"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (MEAN_SCORE,)
    world_version: ClassVar[int] = 2  # 2: everybody stands at least 0.3 m from every wall
    metric_means: ClassVar[Mapping[str, MetricRule]] = {f"{split}.mse": "uniform" for split in ("validation", "test")}
    squared_residuals: ClassVar[int] = 1
    ragged: ClassVar[bool] = True
    trained_model: ClassVar[str] = "fedapps.tasks.social.trained:SocialTrained"
    log_import: ClassVar[str] = "fedapps.tasks.social.logs:SocialImport"

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raise :class:`DataError` if the option ``participants`` is invalid (:meth:`Options.nodes`)."""
        super().__init__(options)
        self.nodes = self.options.nodes()
        self.graphs = graphs(self.options)

    @property
    def roles(self) -> ModelRoles:
        """The head is the last convolution, which scores the robot's place."""
        last = self.options.depth()
        body = tuple(f"layers.{layer}.*" for layer in range(last))
        return ModelRoles(head=(f"layers.{last}.*",), body=body, features=True)

    @property
    def num_stages(self) -> int:
        return 1 if self.options.together else len(self.nodes[0])

    @property
    def has_world(self) -> bool:
        return self.options.source == "simulated"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        return {name: getattr(self.options, name) for name in ("participants", "world_scenes")}

    def check_nodes(self, num_nodes: int) -> None:
        if num_nodes != len(self.nodes):
            raise DataError(
                f"social.participants = {self.options.participants!r} lists the participants of {len(self.nodes)} "
                f"nodes, but num-nodes is {num_nodes}: set num-nodes = {len(self.nodes)}, or list those of "
                f"{num_nodes} nodes"
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
                "social.source = 'recorded' reads ratings by people and cannot be simulated: set data-dir to the "
                "folder of the files, or set social.source = 'simulated'"
            )
        self.check_nodes(num_nodes)
        participants = [participant for node in self.nodes for participant in node]
        write_world(folder, participants, seed, scenes=self.options.world_scenes)

    def node(self, folder: Path, partition: int, num_partitions: int) -> Participants:
        """Return the participants of node ``partition``. Raise :class:`DataError` if there is no such node."""
        self.check_nodes(num_partitions)
        check_partition(partition, num_partitions)
        return Participants(folder, f"client-{partition + 1}", self._stages(self.nodes[partition]))

    def whole(self, folder: Path) -> Participants:
        """Return all participants if the folder has those of the options, otherwise the ones of a deployed node.

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
            return Participants(folder, "pooled", pooled)
        own = sorted(files, key=lambda participant: (participant not in named, _index(named, participant), participant))
        stages = self._stages(own)
        if not own or len(stages) != self.num_stages:
            names = ", ".join(path.name for path in files.values()) or "none"
            raise DataError(
                f"{folder}: expected {self.num_stages} files <participant>.json, one for each stage, or the files of "
                f"all participants ({self.options.participants}); found {names}. Add or remove files, or change the "
                "keys social.participants and social.together"
            )
        return Participants(folder, "+".join(own), stages)

    def scenes(self, folder: Path, participants: Sequence[str]) -> Mapping[str, Sequence[RatedScene]]:
        """Return the splits of several participants together."""
        options = self.options
        parts = [
            split_scenes(
                read_participant(folder, participant),
                participant,
                seed=options.split_seed,
                train_fraction=options.train_fraction,
                augment=options.augment,
            )
            for participant in participants
        ]
        return {split: [scene for part in parts for scene in part[split]] for split in SPLITS}

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        return self._profile(self.node(folder, partition, num_partitions))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        files = participant_files(folder)
        groups = self.whole(folder).stages if own else self.nodes
        read = [name for group in groups for name in group]
        splits, unused = self.scenes(folder, read), sorted(set(files) - set(read))
        counts = ", ".join(f"{len(scenes)} {split}" for split, scenes in splits.items())
        mirrored = ", with mirror images" if self.options.augment else ""
        return (
            f"participants {', '.join(read)}; other files: {', '.join(unused) or 'none'}; scenes: {counts}"
            f"{mirrored}; cm and degrees, scores from 0 (worst) to 100"
        )

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> list[Path]:
        files, stages = participant_files(folder), self.node(folder, partition, num_partitions).stages
        return [files[participant] for stage in stages for participant in stage]

    def own_profile(self, folder: Path) -> NodeProfile:
        return self._profile(self.whole(folder))

    def _profile(self, node: Participants) -> NodeProfile:
        stages = [self.scenes(node.folder, participants) for participants in node.stages]
        return NodeProfile(node.key, len(stages[0]["train"]), node.groups)

    def _stages(self, participants: Sequence[str]) -> list[Sequence[str]]:
        return [participants] if self.options.together else [[participant] for participant in participants]

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
        (:meth:`~fedapps.tasks.social.task.SocialTask.whole`).
        """
        return self._node(self.whole(folder))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean squared error of the score, which ranges from 0 to 1."""
        return mse_loss(_predicted(model, batch), batch["score"])

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Where people and objects stand, and the rating. The attacker knows how many there are, and who interacts."""

        def with_rating(batch: Batch, unknown: Tensor) -> Batch:
            return {**batch, "score": unknown}

        rating = Secret("score", "rating of 100", 5.0, with_rating, lambda batch: 100 * batch["score"], "points")
        if self.options.graph != "compact" or self.options.geometry != "cartesian":
            return (rating,)
        return Secret("nodes", "positions", 0.5, _with_poses, _positions, "m", unordered=True), rating

    def drawn_labels(self, model: nn.Module, batch: Batch, temperature: float) -> Batch:
        """Return scores a standard deviation of the noise above or below the model's.

        The squared gradient of such a score is its mean under the Gaussian likelihood, so the Fisher information has no
        noise from the draws.
        """
        predicted = _predicted(model, batch)
        sides = 2 * torch.randint_like(predicted, 2) - 1
        return {**batch, "score": predicted + (temperature / 2) ** 0.5 * sides}

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield the same batches as other tasks, each padded only to its own largest graph, which halves the cost of a
        step.
        """
        return self._trimmed(data.splits[split], torch.randperm(data.count(split)), batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield graphs of similar size together, which minimises padding."""
        order = self.graphs.sizes(data.splits[split]).argsort(stable=True)
        return self._trimmed(data.splits[split], order, batch_size)

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
        for rows in torch.split(order, batch_size):
            yield self.graphs.trimmed({name: tensor[rows] for name, tensor in examples.items()})

    def _node(self, node: Participants) -> NodeData:
        scenes = [self.scenes(node.folder, participants) for participants in node.stages]
        loaded = [{split: self._examples(some) for split, some in stage.items() if some} for stage in scenes]
        extra = {"scene": scene_to_draw(tests)} if (tests := scenes[-1]["test"]) else {}
        return NodeData(node.key, loaded[0], node.groups, extra, stages=tuple(loaded) if len(loaded) > 1 else ())

    def _examples(self, scenes: Sequence[RatedScene]) -> Batch:
        score = torch.tensor([scene.score / 100 for scene in scenes], dtype=torch.float32)
        return {**self.graphs.build(scenes), "score": score}


def _mean_score(data: NodeData) -> Metrics:
    stages = {f"stage-{number}.": splits for number, splits in enumerate(data.stages, start=1)} or {"": data.splits}
    return {
        f"{stage}test.mse": float(((splits["test"]["score"] - splits["train"]["score"].mean()) ** 2).mean())
        for stage, splits in stages.items()
        if "test" in splits
    }


def _predicted(model: nn.Module, batch: Batch) -> Tensor:
    predicted: Tensor = model(**{name: tensor for name, tensor in batch.items() if name != "score"})
    return predicted


def _with_poses(batch: Batch, unknown: Tensor) -> Batch:
    """A batch with other poses of people and objects; interactions are midway between their members."""
    kinds = batch["nodes"][..., : len(COMPACT_KINDS)]
    bodies = kinds[..., 1:3].sum(dim=2, keepdim=True)
    poses = (2 * unknown[..., -3:] - 1) * unknown.new_tensor([_REACH, _REACH, 1.0]) * bodies
    members = (batch["adjacency"] > 0) * bodies.mT
    midway = members.to(poses) @ poses[..., :2] / members.sum(dim=2, keepdim=True).clamp(min=1)
    places = torch.where(kinds[..., 3:] > 0, midway, poses[..., :2])
    return {**batch, "nodes": torch.cat([kinds, places, poses[..., 2:]], dim=2)}


def _positions(batch: Batch) -> Tensor:
    nodes = batch["nodes"]
    return torch.where(nodes[..., 1:3].sum(dim=2, keepdim=True) > 0, nodes[..., -3:-1], torch.nan)


def _moved(batch: Batch, model: nn.Module) -> Batch:
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in batch.items()}


def _index(named: Sequence[str], participant: str) -> int:
    return named.index(participant) if participant in named else len(named)
