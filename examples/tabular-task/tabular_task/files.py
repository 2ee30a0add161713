"""Tables in CSV files: ``<name>-train.csv`` and ``<name>-test.csv`` for each node.

The first line has the column names: ``label``, then one column per feature, all of them numbers. Labels count from 0.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import Batch, DataError, NodeData

from fedapps.base.text_files import found_in, open_text

SPLITS = ("train", "test")


def node_names(folder: Path) -> list[str]:
    """The names before ``-train.csv``, sorted. Raises :class:`DataError` if there are none."""
    names = [path.name.removesuffix("-train.csv") for path in found_in(folder, "*-train.csv")]
    if not names:
        raise DataError(f"{folder}: expected files <name>-train.csv and <name>-test.csv, found none")
    return names


def read_nodes(folder: Path, names: Sequence[str], num_features: int, num_classes: int) -> NodeData:
    """The tables of these names as the data of one node: ``x [N, features]`` float32 and ``label [N]`` int64.

    Raises
    ------
    DataError
        A file is missing or malformed; the message names it.
    """
    splits: dict[str, Batch] = {}
    for split in SPLITS:
        rows = np.concatenate([_rows(folder / f"{name}-{split}.csv", num_features, num_classes) for name in names])
        x, label = torch.from_numpy(rows[:, 1:].astype(np.float32)), torch.from_numpy(rows[:, 0].astype(np.int64))
        splits[split] = {"x": x, "label": label}
    return NodeData("+".join(names), splits)


def _rows(path: Path, num_features: int, num_classes: int) -> np.ndarray:
    try:
        with open_text(path) as file:
            header = file.readline().strip().split(",")
            if header[0] != "label" or len(header) != num_features + 1:
                raise DataError(
                    f"{path}, line 1: expected the column label and {num_features} features, found {len(header)} "
                    f"columns, the first of them {header[0]!r}"
                )
            rows = np.loadtxt(file, delimiter=",", ndmin=2)
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"{path}: not a table of numbers: {error}") from error
    if rows.shape[1:] != (num_features + 1,) or not np.isfinite(rows).all():
        raise DataError(f"{path}: expected {num_features + 1} finite numbers in each of one or more lines")
    if set(rows[:, 0]) - set(range(num_classes)):
        raise DataError(f"{path}: labels must be whole numbers from 0 to {num_classes - 1}")
    return rows
