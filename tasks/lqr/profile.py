"""The profiles of the nodes of the task "lqr" and the simulation of their data, without torch."""

from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

from fedapps.sim import lqr
from fedapps.tasks.profiles import DataError, NodeProfile, TaskProfiles

from .options import LqrOptions
from .rollouts import read_rollouts, robot_files


class LqrProfiles(TaskProfiles):
    """A node is a robot; its file holds its rollouts."""

    name: ClassVar[str] = "lqr"
    Options: ClassVar[type] = LqrOptions
    headline: ClassVar[tuple[str, ...]] = (
        "test.state_loss",
        "test.control_loss",
        "test.total_loss",
        "test.excess",
    )

    @property
    def world_options(self) -> dict[str, object]:
        """All but the share of the training steps for validation, which is held out when the files are read."""
        return {name: value for name, value in asdict(self.options).items() if name != "validation_share"}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate robots with ``R`` = 1, 50 and 100; any other number of robots is spaced logarithmically over [1,
        100].
        """
        chosen = self.options
        lqr.write_world(
            folder,
            num_nodes,
            seed,
            count=chosen.trajectories,
            horizon=chosen.horizon,
            test_fraction=chosen.test_fraction,
            start_range=chosen.start_range,
            noise_variance=chosen.noise_variance,
        )

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        return self._profile([robot_file(folder, partition, num_partitions)])

    def own_profile(self, folder: Path) -> NodeProfile:
        return self._profile(robot_files(folder))

    def _profile(self, files: list[Path]) -> NodeProfile:
        found = read_rollouts(files, self.options.validation_share)
        return NodeProfile(found.key, len(found.tables.get("train", ())), found.groups)


def robot_file(folder: Path, partition: int, num_partitions: int) -> Path:
    """Return the file of node ``partition``. Raise :class:`DataError` if there are fewer files than nodes."""
    files = robot_files(folder)
    if len(files) < num_partitions or not 0 <= partition < num_partitions:
        raise DataError(f"{folder}: expected a robot for node {partition} of {num_partitions}, found {len(files)}")
    return files[partition]
