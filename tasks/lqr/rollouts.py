"""Reads the rollouts of point-mass robots from one CSV file per robot, without torch.

A file has the columns ``control_weight, split, y, v, u, next_y, next_v`` in any order, and may have others. Each row
is one step: in state ``(y, v)`` the control ``u`` led to ``(next_y, next_v)``. ``split`` is train, validation or test.
``control_weight`` is the robot's cost ``R``, which determines its optimal gain.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fedapps.tasks.profiles import DataError
from fedapps.tasks.tables import CSV_ENDINGS, read_table

SPLITS = ("train", "validation", "test")
INPUTS = ("y", "v", "u")
TARGETS = ("next_y", "next_v", "u")
#: The columns of :attr:`Rollouts.tables`.
COLUMNS = ("y", "v", "u", "next_y", "next_v", "control_weight")


def robot_files(folder: Path) -> list[Path]:
    """Return the files ``robot-*.csv``, ``.csv.gz`` and ``.csv.xz`` of a folder, sorted by name.

    Raises
    ------
    DataError
        There is no such file.
    """
    files = sorted(path for path in folder.glob("robot-*") if path.name.endswith(CSV_ENDINGS))
    if not files:
        raise DataError(f"{folder}: expected files robot-*.csv, .csv.gz or .csv.xz, found none")
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
