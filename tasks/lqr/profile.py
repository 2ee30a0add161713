"""The task "lqr" without torch: its options, the files of robots, and the profiles of its nodes.

A file has the columns ``control_weight, split, y, v, u, next_y, next_v`` in any order, and may have others. Each row
is one step: in state ``(y, v)`` the control ``u`` led to ``(next_y, next_v)``. ``split`` is train, validation or test.
``control_weight`` is the robot's cost ``R``, which determines its optimal gain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from fedapps.tasks.lqr import world as lqr
from fedapps.tasks.profiles import ModelRoles, NodeProfile, TaskProfiles

from fedapps.base.errors import DataError
from fedapps.base.options import option
from fedapps.base.tables import CSV_ENDINGS, read_table
from fedapps.base.text_files import found_in, refuse_copies

SPLITS = ("train", "validation", "test")
INPUTS = ("y", "v", "u")
TARGETS = ("next_y", "next_v", "u")
#: The columns of :attr:`Rollouts.tables`.
COLUMNS = ("y", "v", "u", "next_y", "next_v", "control_weight")


@dataclass(frozen=True)
class LqrOptions:
    """Options of the task "lqr". The defaults are the paper's, except for the range of initial states (ours)."""

    start_range: float = option(
        10.0, "Initial positions and velocities are uniform in ±start-range", above=0, data=True
    )
    trajectories: int = option(
        40, "Rollouts per robot; at least one is for training and one for testing", minimum=2, data=True
    )
    horizon: int = option(30, "Steps per rollout", minimum=1, data=True)
    test_fraction: float = option(
        0.1, "Share of each robot's rollouts held out for testing", minimum=0, maximum=1, data=True
    )
    validation_share: float = option(
        0.0,
        "Share of a robot's training steps held out for validation, the last ones of its file, if the file has no "
        "validation split",
        minimum=0,
        maximum=0.9,
    )
    noise_variance: float = option(
        0.01, "Variance of the noise on the control and on each component of the state", minimum=0, data=True
    )


#: The floor of a comparison: the state does not change, and the control is zero.
REST = "no motion, no control"


def robot_files(folder: Path) -> list[Path]:
    """Return the files ``robot-*.csv``, ``.csv.gz`` and ``.csv.xz`` of a folder, sorted by name.

    Raises
    ------
    DataError
        There is no such file, or one is there plain and compressed.
    """
    files = found_in(folder, *(f"robot-*{ending}" for ending in CSV_ENDINGS))
    if not files:
        raise DataError(f"{folder}: expected files robot-*.csv, .csv.gz or .csv.xz, found none")
    refuse_copies(files)
    return files


@dataclass(frozen=True)
class Rollouts:
    """The pooled rows of one or more files.

    Attributes
    ----------
    key : str
        The file name up to the first dot; the keys of several files are joined by ``+``.
    tables : mapping of str to ndarray
        The rows of each split that has any, float64 ``[N, 6]``, with the columns :data:`COLUMNS`.
    """

    key: str
    tables: Mapping[str, np.ndarray]

    @property
    def groups(self) -> dict[str, str]:
        """The label ``control-weight``, if it is the same in all rows."""
        cost = COLUMNS.index("control_weight")
        distinct = np.unique(np.concatenate([table[:, cost] for table in self.tables.values()]))
        return {"control-weight": f"{distinct[0]:g}"} if len(distinct) == 1 else {}


def read_rollouts(paths: Iterable[Path], validation_share: float = 0.0) -> Rollouts:
    """Read files of robots and pool their rows.

    Parameters
    ----------
    paths : iterable of Path
        The files.
    validation_share : float
        The share of the training rows of a file that are its validation split if it has none: the last rows, rounded
        down. The noise of each step is independent of all others, so that it does not matter where rollouts end.

    Raises
    ------
    DataError
        A file is malformed, or no row belongs to the split train or test.
    """
    paths = list(paths)
    parts = [_with_validation(*_read(path), validation_share) for path in paths]
    pooled = {
        split: np.concatenate([table[number == index] for number, table in parts]) for index, split in enumerate(SPLITS)
    }
    tables = {split: table for split, table in pooled.items() if len(table)}
    if "train" not in tables and "test" not in tables:
        raise DataError(f"{', '.join(map(str, paths))}: expected rows of split train or test, found none")
    return Rollouts("+".join(path.name.split(".", 1)[0] for path in paths), tables)


def _with_validation(split: np.ndarray, values: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """The index of the split and the values of each row, the last training rows for validation where there are none."""
    training, validation = (np.flatnonzero(split == SPLITS.index(name)) for name in ("train", "validation"))
    held_out = training[len(training) - int(share * len(training)) :]
    if len(validation) or not len(held_out):
        return split, values
    split = split.copy()
    split[held_out] = SPLITS.index("validation")
    return split, values


def _read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The index of the split ``[N]`` and the values ``[N, 6]`` of each row of a file."""
    table = read_table(path, ["split", *COLUMNS])
    split = table.words("split", {name: index for index, name in enumerate(SPLITS)})
    values = np.stack([table.numbers(name) for name in COLUMNS], axis=1)
    if len(wrong := np.flatnonzero(values[:, COLUMNS.index("control_weight")] <= 0)):
        raise table.fault("control_weight", wrong, "expected a number above 0")
    return split, values


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

    files: ClassVar[Mapping[str, str]] = {
        "`robot-NAME.csv`": (
            "`y, v, u, next_y, next_v` (position, velocity, control; the next ones), `control_weight` (R of "
            "the cost, above 0), `split` (train, validation, test)"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (REST,)

    @cached_property  # every message asks for the folder of the world
    def world_options(self) -> dict[str, object]:
        """All but the share of the training steps for validation, which is held out when the files are read."""
        return {name: value for name, value in asdict(self.options).items() if name != "validation_share"}

    @property
    def roles(self) -> ModelRoles:
        """The head is the personal gain, which is not computed from the dynamics."""
        return ModelRoles(head=("policy.*",), body=("dynamics.*",))

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

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        files = robot_files(folder)
        tables = read_rollouts(files, self.options.validation_share).tables
        counts = ", ".join(f"{len(tables.get(split, ()))} {split}" for split in SPLITS)
        return f"{len(files)} robots ({files[0].name} to {files[-1].name}), steps by the column split: {counts}"

    def own_files(self, folder: Path, partition: int, num_partitions: int) -> list[Path]:
        return [robot_file(folder, partition, num_partitions)]

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
