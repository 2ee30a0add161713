"""The rollouts of point-mass robots as tensors."""

from collections.abc import Iterable
from pathlib import Path

import torch
from fedapps.tasks.base import NodeData

from .rollouts import COLUMNS, INPUTS, TARGETS, read_rollouts


def read_robots(paths: Iterable[Path], validation_share: float = 0.0) -> NodeData:
    """Read files of robots as the data of one node (:func:`~fedapps.tasks.lqr.rollouts.read_rollouts`).

    Returns
    -------
    NodeData
        Its splits hold ``inputs [N, 3] = (y, v, u)`` and ``targets [N, 3] = (next_y, next_v, u)``, float32.
        ``extra["control-weights"]`` maps each split to the cost ``R`` of every row, float64 ``[N]``.

    Raises
    ------
    DataError
        A file is malformed, or no row belongs to the split train or test.
    """
    found = read_rollouts(paths, validation_share)
    inputs, targets = ([COLUMNS.index(name) for name in names] for names in (INPUTS, TARGETS))
    splits = {
        split: {
            "inputs": torch.tensor(table[:, inputs], dtype=torch.float32),
            "targets": torch.tensor(table[:, targets], dtype=torch.float32),
        }
        for split, table in found.tables.items()
    }
    weights = {split: table[:, COLUMNS.index("control_weight")] for split, table in found.tables.items()}
    return NodeData(found.key, splits, found.groups, {"control-weights": weights})
