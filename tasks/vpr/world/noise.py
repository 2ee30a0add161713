"""Hash noise: values that look random but belong to an object, such as the shade of a brick in all visits."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


def hashed(*keys: ArrayLike) -> NDArray[np.float32]:
    """Return a number in [0, 1) for each tuple of ``keys``, which are rounded down and broadcast."""
    mixed = np.zeros((), np.uint32)
    with np.errstate(over="ignore"):  # overflow is intended
        for number, key in enumerate(keys):
            word = np.floor(key).astype(np.int32).astype(np.uint32)
            mixed = (mixed ^ (word + np.uint32(0x9E3779B9 * (number + 1) & 0xFFFFFFFF))) * np.uint32(0x85EBCA6B)
            mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0xC2B2AE35)
            mixed = mixed ^ (mixed >> np.uint32(13))
    return (mixed >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def smooth_field(rng: np.random.Generator, height: int, width: int, cells: int) -> NDArray[np.float32]:
    """Draw smooth noise ``[height, width]`` in [0, 1], interpolated between ``cells`` by ``2 cells`` knots."""
    knots = rng.random((cells + 1, 2 * cells + 1), dtype=np.float32)
    row, column = (np.linspace(0, n, size, endpoint=False) for n, size in ((cells, height), (2 * cells, width)))
    i, j = row.astype(int), column.astype(int)
    x, y = (row - i).astype(np.float32)[:, None], (column - j).astype(np.float32)
    x, y = x * x * (3 - 2 * x), y * y * (3 - 2 * y)
    upper = knots[i][:, j] * (1 - y) + knots[i][:, j + 1] * y
    lower = knots[i + 1][:, j] * (1 - y) + knots[i + 1][:, j + 1] * y
    field: NDArray[np.float32] = upper * (1 - x) + lower * x
    return field
