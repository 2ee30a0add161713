"""The profiles of the nodes of the task "driving", without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from fedapps.tasks.driving.world.styles import WORLD_FILE, read_styles
from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles

from fedapps.base.errors import DataError

from .data import SPLITS, Recording, files_of, read_sessions, with_validation
from .options import Options as DrivingOptions

#: The floor of a comparison: the human keeps its velocity.
CONSTANT_VELOCITY = "constant velocity"


class DrivingProfiles(TaskProfiles):
    """A node is a robot that always meets the same driver; the sessions of a driver are a block of the files."""

    name: ClassVar[str] = "driving"
    Options: ClassVar[type] = DrivingOptions
    options: DrivingOptions
    headline: ClassVar[tuple[str, ...]] = (
        "test.elbo",
        "test.error_1.5s",
        "closed_loop.mean_cost",
        "closed_loop.mean_time_to_lane_change",
        "closed_loop.mean_distance_at_start",
        "non_proactive.mean_cost",
    )

    files: ClassVar[Mapping[str, str]] = {
        "`*.csv`, a row per 0.1 s": (
            "`trial, block, step, t` (a block is a node), robot `xr yr vxr vyr axr ayr` and human `xh` to "
            "`ayh` (m and s; x along the road)"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (CONSTANT_VELOCITY,)

    def __init__(self, options: DrivingOptions | None = None) -> None:
        """Raise :class:`~fedapps.base.errors.DataError` if an option is invalid (:attr:`Options.road`)."""
        super().__init__(options)
        self.road = self.options.road

    @property
    def roles(self) -> ModelRoles:
        """The head turns the decoder's states into the human's controls."""
        read = ("past.*", "plan.*", "encoder.*", "decoder.*")
        inferred = ("outcome.*", "recognition.*") if self.options.posterior == "cvae" else ()
        return ModelRoles(head=("controls.*",), body=(*read, *inferred), features=True)

    @property
    def has_world(self) -> bool:
        return self.options.scenario != "trials"

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate sessions (:func:`~fedapps.tasks.driving.closed_loop.simulate_world`)."""
        from .closed_loop import simulate_world  # needs torch

        simulate_world(folder, self.options, num_nodes, seed)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        recording = self.checked(folder, read_sessions(folder, self.road))
        return self._profile(folder, recording, block_of(folder, recording, partition, num_partitions))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        recording = self.checked(folder, read_sessions(folder, self.road))
        sessions = [session for of_block in recording.blocks.values() for session in of_block]
        counts = ", ".join(f"{sum(s.split == split for s in sessions)} {split}" for split in SPLITS)
        line = f"{len(recording.blocks)} drivers (column block), sessions: {counts}; m and m/s, x along the road"
        if recording.dynamics == "bicycle":
            return line
        left_out = self.options.demonstrations or "none"
        return f"{line}; line between the lanes at y = {self.road.lane_line:g} m; blocks left out: {left_out}"

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> list[Path]:
        """A simulated node also has ``world.json``, with which it can simulate its driver again."""
        (block,) = block_of(folder, read_sessions(folder, self.road), partition, num_partitions)
        own, world = files_of(folder, block, self.road), folder / WORLD_FILE
        return [*own, world] if own and world.exists() else own

    def own_profile(self, folder: Path) -> NodeProfile:
        recording = self.checked(folder, read_sessions(folder, self.road))
        return self._profile(folder, recording, list(recording.blocks))

    @property
    def world_options(self) -> dict[str, object]:
        """All but what decides only how files are read."""
        reading = ("validation_share", "lane_line", "demonstrations")
        return {name: value for name, value in asdict(self.options).items() if name not in reading}

    def checked(self, folder: Path, recording: Recording) -> Recording:
        """Return the sessions with those for validation.

        Raises
        ------
        DataError
            The sessions do not have the dynamics and the number of cars of the scenario.
        """
        expected = (self.options.dynamics, self.options.cars)
        if (recording.dynamics, recording.cars) != expected:
            raise DataError(
                f"{folder}: holds {recording.cars} cars with {recording.dynamics} dynamics; scenario "
                f"{self.options.scenario!r} expects {expected[1]} cars with {expected[0]} dynamics (driving.scenario; "
                "recorded trials of people are 'trials')"
            )
        return with_validation(recording, self.options.validation_share)

    def _profile(self, folder: Path, recording: Recording, blocks: list[int]) -> NodeProfile:
        try:
            styles = read_styles(folder)
        except ValueError as error:
            raise DataError(str(error)) from error
        lengths = [len(s.states) for block in blocks for s in recording.blocks[block] if s.split == "train"]
        windows = sum(len(self.options.moments(length)) for length in lengths)
        return NodeProfile(key_of(blocks), windows, groups_of(blocks, styles))


def block_of(folder: Path, recording: Recording, partition: int, num_partitions: int) -> list[int]:
    """Return the block of node ``partition``. Raise :class:`DataError` if there are fewer blocks than nodes."""
    blocks = list(recording.blocks)
    if num_partitions > len(blocks):
        raise DataError(
            f"{folder}: holds {len(blocks)} blocks (drivers), but num-nodes is {num_partitions}; expected at least one "
            "block per node"
        )
    return blocks[partition : partition + 1]


def key_of(blocks: Sequence[int]) -> str:
    """Return the key of a node that has these blocks."""
    return f"driver-{blocks[0]:02d}" if len(blocks) == 1 else "pooled"


def groups_of(blocks: Sequence[int], styles: Mapping[int, float]) -> dict[str, str]:
    """Return the style of the driver, for a node that meets a single, simulated driver."""
    return {"style": f"{styles[blocks[0]]:+.2f}"} if len(blocks) == 1 and blocks[0] in styles else {}
