"""The rollouts of point-mass robots as tensors."""

from collections.abc import Iterable
from pathlib import Path

import torch

from tasks.base import NodeData

from .rollouts import read_rollouts


def read_robots(paths: Iterable[Path]) -> NodeData:
    """The rollouts in ``paths`` (:func:`~tasks.lqr.rollouts.read_rollouts`) as one node's data.

    Splits hold ``inputs [N, 3] = (y, v, u)`` and ``targets [N, 3] = (next_y, next_v, u)``, float32.
    ``extra["control-weights"]`` maps each split to ``R`` of its rows, float64 ``[N]``.
    """
    found = read_rollouts(paths)
    splits = {
        split: {
            "inputs": torch.tensor(table[:, [0, 1, 2]], dtype=torch.float32),
            "targets": torch.tensor(table[:, [3, 4, 2]], dtype=torch.float32),
        }
        for split, table in found.tables.items()
    }
    weights = {split: table[:, 5] for split, table in found.tables.items()}
    return NodeData(found.key, splits, found.groups, {"control-weights": weights})
