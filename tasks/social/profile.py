"""The profiles of the nodes of the task "social" and the simulation of their data, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles, check_partition
from fedapps.tasks.social.world.world import write_world

from fedapps.base.errors import DataError

from .options import Options as SocialOptions
from .scenes import SPLITS, RatedScene, participant_files, read_participant, split_scenes


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


#: The floor of a comparison: the mean score of a robot's training scenes.
MEAN_SCORE = "mean score"


class SocialProfiles(TaskProfiles):
    """A node is a robot that meets its participants one after another, one stage each."""

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

    def __init__(self, options: SocialOptions | None = None) -> None:
        """Raise :class:`DataError` if the option ``participants`` is invalid (:meth:`Options.nodes`)."""
        super().__init__(options)
        self.nodes = self.options.nodes()

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
            found = ", ".join(path.name for path in files.values()) or "none"
            raise DataError(
                f"{folder}: expected {self.num_stages} files <participant>.json, one for each stage, or the files of "
                f"all participants ({self.options.participants}); found {found}. Add or remove files, or change the "
                "keys social.participants and social.together"
            )
        return Participants(folder, "+".join(own), stages)

    def scenes(self, folder: Path, participants: Sequence[str]) -> Mapping[str, Sequence[RatedScene]]:
        """Return the splits of several participants together."""
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
            f"participants {', '.join(read)}; other files: {', '.join(unused) or 'none'}; scenes drawn for {counts}"
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


def _index(named: Sequence[str], participant: str) -> int:
    return named.index(participant) if participant in named else len(named)
