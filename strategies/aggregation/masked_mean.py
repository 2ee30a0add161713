"""Weighted mean of replies that contain only some units of each array.

Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, Section 3.2
(https://arxiv.org/abs/2003.03196): nodes send the units of their base parameters that their masks select.
"""

from collections.abc import Iterator, Mapping
from math import prod
from types import EllipsisType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays import Arrays, NamedArrays, check_alike, is_float
from ..blocks import BLOCK
from .mean import IntegerPolicy, RunningMean, StreamingMean

#: Name -> which units of a floating-point array were sent: a boolean array with as many dimensions as the array and
#: length 1 along dimensions that the mask does not distinguish ([8, 1] for the rows of an [8, 3] matrix). An array
#: without a mask was sent completely.
Masks = Mapping[str, NDArray[np.bool_]]
_COMPLETE = np.ones((), dtype=np.bool_)


class MaskedMean:
    """Σ_k w_k M_k θ_k / Σ_k w_k M_k for every unit, over replies k of weight w_k with masks M_k of zeros and ones.

    Until a reply leaves out a unit of an array, its mean is that of :class:`StreamingMean`, bit for bit; after that it
    is a running mean in float64 with a total weight for every unit. A unit that no reply contains is 0.

    Parameters
    ----------
    integers : "newest" or "round"
        How integer and boolean arrays, which have no masks, are combined; see :class:`StreamingMean`.
    """

    def __init__(self, integers: IntegerPolicy = "newest") -> None:
        self._discrete = StreamingMean(integers)
        self._complete: dict[str, RunningMean] = {}  # until a reply leaves a unit of the array out
        self._means: Arrays = {}
        self._weights: dict[str, NDArray[np.float64]] = {}
        self._template: Arrays = {}

    @property
    def count(self) -> int:
        """Number of replies added."""
        return self._discrete.count

    def add(self, arrays: NamedArrays, weight: float, masks: Masks) -> None:
        """Add one reply to the mean. The reply is neither kept nor changed.

        Parameters
        ----------
        arrays : dict of arrays
            Finite values. Values of units that were not sent are ignored. The first reply sets names, shapes and
            dtypes.
        weight : float
            Finite and above 0.
        masks : mapping of names to arrays of booleans
            See :data:`Masks`.

        Raises
        ------
        ValueError
            The weight is out of range, names, shapes or dtypes differ from the first reply's, or a mask does not fit.
        """
        if reason := mask_error(masks, arrays):
            raise ValueError(f"mask {reason}")
        if self.count == 0:
            self._template = {name: np.broadcast_to(np.zeros((), a.dtype), a.shape) for name, a in arrays.items()}
        check_alike(self._template, arrays)
        self._discrete.add({name: array for name, array in arrays.items() if not is_float(array)}, weight)
        for name, array in arrays.items():
            if is_float(array):
                self._fold(name, array, float(weight), masks.get(name, _COMPLETE))

    def result(self) -> Arrays:
        """The mean as new arrays in the dtypes of the replies.

        Raises
        ------
        ValueError
            No reply was added.
        """
        discrete = self._discrete.result()
        return {
            name: discrete[name] if name in discrete else self._mean(name, template.dtype)
            for name, template in self._template.items()
        }

    def _mean(self, name: str, dtype: DTypeLike) -> NDArray[Any]:
        known = self._complete.get(name)
        return known.result(dtype) if known else self._means[name].astype(dtype)

    def sent_units(self) -> dict[str, NDArray[np.bool_]]:
        """For every floating-point array, the units that at least one reply contained.

        Returns
        -------
        dict of arrays of bool
            In the shape that the masks of the replies broadcast to; 0-d if all replies contained the complete array.
        """
        return {name: np.asarray(total > 0) for name, total in self._weights.items()}

    def _fold(self, name: str, value: NDArray[Any], weight: float, mask: NDArray[np.bool_]) -> None:
        before = self._weights.get(name, np.zeros(()))
        if not before.ndim and mask.all():
            mask = _COMPLETE
        total = self._weights[name] = np.asarray(before + weight * mask)
        if mask is _COMPLETE and name not in self._means:  # all replies so far were complete
            self._complete.setdefault(name, RunningMean()).add(value, weight)
            return
        if known := self._complete.pop(name, None):
            self._means[name] = known.result(np.float64)
        mean = self._means.setdefault(name, np.zeros(value.shape))
        new = mask & (before == 0)  # 0 + 1 · −0 would lose the sign
        share = np.divide(weight * mask, total, out=np.zeros_like(total), where=total > 0)
        for rows in _row_blocks(value.shape):
            part, wide = mean[rows], value[rows].astype(np.float64)
            np.copyto(part, wide, where=_rows_of(new, rows))
            step = np.asarray(_rows_of(share, rows) * (part - wide))
            np.subtract(part, step, out=part, where=_rows_of(mask, rows))


def _row_blocks(shape: tuple[int, ...]) -> Iterator[slice | EllipsisType]:
    """Slices of the first axis, if there is one, so that what is computed for one fits the processor's cache."""
    if not shape:
        yield ...
        return
    rows = max(1, BLOCK // max(1, prod(shape[1:])))
    for start in range(0, shape[0], rows):
        yield slice(start, start + rows)


def _rows_of(array: NDArray[Any], rows: slice | EllipsisType) -> NDArray[Any]:
    """The rows of an array that is broadcast along its first axis if this has the length 1."""
    return array if array.ndim == 0 or array.shape[0] == 1 else array[rows]


def mask_error(masks: NamedArrays, arrays: NamedArrays) -> str | None:
    """Check masks against the arrays they belong to.

    Parameters
    ----------
    masks : mapping of names to arrays
        Booleans, or integers 0 and 1 from nodes that cannot send booleans; shapes as in :data:`Masks`.
    arrays : dict of arrays
        The shared arrays.

    Returns
    -------
    str or None
        The first fault found, ``None`` if all masks fit.
    """
    for name, mask in masks.items():
        if name not in arrays or not is_float(arrays[name]):
            return f"{name!r} belongs to no shared floating-point array"
        shape = arrays[name].shape
        if mask.ndim != len(shape) or any(own not in (1, full) for own, full in zip(mask.shape, shape, strict=True)):
            return f"{name!r} has shape {list(mask.shape)}: must be {list(shape)}, or 1 along some dimensions"
        if not (mask.dtype == np.bool_ or np.issubdtype(mask.dtype, np.integer)) or not np.isin(mask, (0, 1)).all():
            return f"{name!r}: must hold booleans, or the integers 0 and 1"
    return None
