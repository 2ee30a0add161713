"""Reads the rollouts of point-mass robots from one CSV file per robot.

A file has the columns ``control_weight, split, y, v, u, next_y, next_v`` in any order, and may have others. Each row
is one step: in state ``(y, v)`` the control ``u`` led to ``(next_y, next_v)``. ``split`` is train, validation or test.
``control_weight`` is the robot's cost ``R``, which determines its optimal gain.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from tasks.base import Batch, DataError, NodeData
from tasks.tables import CSV_ENDINGS, read_table

SPLITS = ("train", "validation", "test")
INPUTS = ("y", "v", "u")
TARGETS = ("next_y", "next_v", "u")


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


def read_robots(paths: Iterable[Path]) -> NodeData:
    """Read files of robots as the data of one node; the rows of several files are pooled.

    Returns
    -------
    NodeData
        Its splits hold ``inputs [N, 3] = (y, v, u)`` and ``targets [N, 3] = (next_y, next_v, u)``, float32.
        ``extra["control-weights"]`` maps each split to the cost ``R`` of every row, float64 ``[N]``. The key is the
        file name up to the first dot; the keys of several files are joined by ``+``.

    Raises
    ------
    DataError
        A file is malformed, or no row belongs to the split train or test.
    """
    paths = list(paths)
    parts = [_read(path) for path in paths]
    splits: dict[str, Batch] = {}
    weights: dict[str, np.ndarray] = {}
    for index, split in enumerate(SPLITS):
        inputs, targets, costs = (
            np.concatenate([part[column][part[0] == index] for part in parts]) for column in (1, 2, 3)
        )
        if len(costs):
            splits[split] = {
                "inputs": torch.tensor(inputs, dtype=torch.float32),
                "targets": torch.tensor(targets, dtype=torch.float32),
            }
            weights[split] = costs
    if "train" not in splits and "test" not in splits:
        raise DataError(f"{', '.join(map(str, paths))}: expected rows of split train or test, found none")
    groups = {}
    if len(distinct := np.unique(np.concatenate(list(weights.values())))) == 1:
        groups["control-weight"] = f"{distinct[0]:g}"
    key = "+".join(path.name.split(".", 1)[0] for path in paths)
    return NodeData(key, splits, groups, {"control-weights": weights})


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The index of the split ``[N]``, inputs ``[N, 3]``, targets ``[N, 3]`` and costs ``[N]`` of a file."""
    table = read_table(path, list(dict.fromkeys(("split", *INPUTS, *TARGETS, "control_weight"))))
    split = table.words("split", {name: index for index, name in enumerate(SPLITS)})
    inputs, targets = (np.stack([table.numbers(name) for name in names], axis=1) for names in (INPUTS, TARGETS))
    costs = table.numbers("control_weight")
    if len(wrong := np.flatnonzero(costs <= 0)):
        raise table.fault("control_weight", wrong, "expected a number above 0")
    return split, inputs, targets, costs
