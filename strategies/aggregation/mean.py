"""Aggregates of replies: the form that all have, and the streaming weighted mean.

The mean keeps no reply, so its memory is a constant number of model copies for any number of nodes. It is the
aggregation of Federated Averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays import Arrays, Buffers, NamedArrays, check_alike, check_kinds, is_discrete, is_float
from ..blocks import BLOCK, aligned, blocks, spread
from ..changed import Change, Changed, ChangedArrays, Origin

IntegerPolicy = Literal["newest", "round"]
#: Replies that are averaged in float32 before their mean enters the mean in float64.
GROUP = 16
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Aggregate(Protocol):
    """What a strategy adds the replies of a round to."""

    @property
    def count(self) -> int:
        """Number of replies added."""

    @property
    def total_weight(self) -> float:
        """Sum of the weights of the replies added."""

    @property
    def defined(self) -> bool:
        """Whether there is a result."""

    def add(self, arrays: NamedArrays, weight: float) -> None:
        """Add one reply, which is not changed. The first reply sets names, shapes and dtypes."""

    def result(self) -> Arrays:
        """The aggregate of the replies added so far, as new arrays in the dtypes of the replies."""


class RunningMean:
    """Weighted mean of one floating-point array, by the running form m ← m − w_k/W (m − θ_k).

    float64 is averaged in float64. Other dtypes are averaged in float32 over groups of :data:`GROUP` consecutive
    replies, and the means of the groups in float64. With u = 2⁻²⁴, the unit roundoff of float32, and M the largest
    absolute value of an element over its replies, a step with the share s = w_k/W adds an error of at most
    (1 + 6 s) u M and multiplies the earlier ones by 1 − s. The error of a group, and so of the mean of any number of
    replies, is therefore below (GROUP + 6) u M ≈ 1.3 · 10⁻⁶ M before the result is rounded to its dtype. Equal values
    have no error.

    Of arrays that are changes of the same origin, the changes are averaged, and M is the largest change; the origin is
    added to the result.
    """

    __slots__ = ("_group", "_group_count", "_group_weight", "_merged", "_merged_weight", "_origin")

    def __init__(self) -> None:
        self._group: NDArray[Any] | None = None  # the mean of the open group
        self._group_count, self._group_weight = 0, 0.0
        self._merged: NDArray[np.float64] | None = None  # the mean of the groups that are full
        self._merged_weight = 0.0
        self._origin: Origin | None = None  # of which these are means of changes

    def add(self, value: NDArray[Any] | Changed, weight: float) -> None:
        """Add an array, which is neither kept nor changed; all must have the same shape and dtype.

        Parameters
        ----------
        value : array or Changed
            Finite, floating-point.
        weight : float
            Finite and above 0.
        """
        wide = value.dtype.itemsize > _FLOAT32.itemsize
        if self._group_count == GROUP and not wide:
            self._merge()
        if isinstance(value, Changed):
            if self._group is None:
                self._origin = value.origin
            if self._origin is None or self._origin.array is not value.origin.array:
                value = value.restored()
        if self._origin and not isinstance(value, Changed):
            self._add_origin()
        self._group_count += 1
        self._group_weight += float(weight)
        if self._group is None:
            dtype = _FLOAT64 if wide else _FLOAT32
            self._group = np.empty(value.shape, dtype) if self._origin else np.empty_like(value, dtype)
        share = float(weight) / self._group_weight
        if isinstance(value, Changed):
            fold_change(self._group, value.change, share)
        elif self._group_count == 1:
            self._group[...] = value
        else:
            fold(self._group, value, share)

    def result(self, dtype: DTypeLike) -> NDArray[Any]:
        """The mean as a new array.

        Raises
        ------
        ValueError
            No array was added.
        """
        if self._group is None:
            raise ValueError("the mean of no arrays is undefined")
        if self._merged is None and self._origin is None:
            return self._group.astype(dtype)
        result = np.empty_like(self._group, dtype)
        share = self._group_weight / (self._merged_weight + self._group_weight)
        results, group, merged = aligned(result, self._group, self._group if self._merged is None else self._merged)
        for block in blocks(0, results.size):
            mean = merged[block].copy()
            if self._merged is not None:
                _fold_block(mean, group[block], share, np.empty_like(mean))
            if self._origin:
                self._origin.add_to(mean, block)
            results[block] = mean
        return self._origin.in_its_order(result) if self._origin else result

    def _merge(self) -> None:
        """Add the mean of the group to the mean of the groups, and begin the next group."""
        assert self._group is not None
        self._merged_weight += self._group_weight
        if self._merged is None:
            self._merged = self._group.astype(np.float64)
        else:
            fold(self._merged, self._group, self._group_weight / self._merged_weight)
        self._group_count, self._group_weight = 0, 0.0

    def _add_origin(self) -> None:
        """Turn the means of changes into means of arrays."""
        for means in (self._group, self._merged):
            if means is not None and self._origin:
                flat = means.reshape(-1)
                for block in blocks(0, flat.size):
                    self._origin.add_to(flat[block], block)
        self._origin = None


@dataclass
class StreamingMean:
    """Weighted mean Σ w_k θ_k / Σ w_k of named arrays with the same names, shapes and dtypes.

    Floating-point arrays are averaged by the running form of the mean, m ← m − w_k/W (m − θ_k), and returned in their
    own dtype. Unlike a sum that is divided at the end, this form returns a single reply, and any number of equal
    replies, bit for bit. See :class:`RunningMean` for the precision. The bits depend on the order of the replies, which
    strategies take in the order of the nodes' keys.

    Parameters
    ----------
    integers : "newest" or "round"
        How integer and boolean arrays are combined. "newest" takes them from the reply added last. "round"
        averages and rounds to the nearest integer, halves to the even one; booleans take the weighted majority,
        False in a tie. "round" is exact while Σ w_k |θ_k − θ_1| is below 2^53.
    """

    integers: IntegerPolicy = "newest"
    count: int = field(default=0, init=False)
    total_weight: float = field(default=0.0, init=False)
    _means: dict[str, RunningMean] = field(default_factory=dict, init=False, repr=False)
    _integers: Arrays = field(default_factory=dict, init=False, repr=False)
    # Shapes and dtypes of the first reply. Its integers are the origin: differences to it are averaged.
    _template: Arrays = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.integers not in get_args(IntegerPolicy):
            raise ValueError(f"integers = {self.integers!r}: must be 'newest' or 'round'")

    @property
    def defined(self) -> bool:
        """Whether there is a result."""
        return self.count > 0

    def add(self, arrays: NamedArrays, weight: float) -> None:
        """Add one reply to the mean. The reply is neither kept nor changed.

        Parameters
        ----------
        arrays : mapping of names to arrays
            Finite values. The first reply sets names, shapes and dtypes.
        weight : float
            Finite and above 0, for example a number of examples.

        Raises
        ------
        ValueError
            The weight is out of range, or names, shapes or dtypes differ from the first reply's.
        TypeError
            An array is neither floating-point, integer nor boolean.
        """
        if not (isfinite(weight) and weight > 0):
            raise ValueError(f"weight = {weight!r}: must be finite and above 0")
        parts: Mapping[str, Any] = arrays.parts if isinstance(arrays, ChangedArrays) else arrays
        if self.count == 0:
            self._begin(parts)
        check_alike(self._template, parts)
        self.count += 1
        self.total_weight += float(weight)
        for name, value in parts.items():
            if name in self._means:
                self._means[name].add(value, weight)
            elif self.integers == "newest":
                self._integers[name] = value.copy()
            else:
                self._integers[name] += float(weight) * _difference(value, self._template[name])

    def _begin(self, arrays: NamedArrays) -> None:
        check_kinds(arrays)
        for name, value in arrays.items():
            averaged = is_discrete(value) and self.integers == "round"
            self._template[name] = value.copy() if averaged else np.broadcast_to(np.zeros((), value.dtype), value.shape)
            if is_float(value):
                self._means[name] = RunningMean()
            elif averaged:
                self._integers[name] = np.zeros(value.shape)

    def result(self) -> Arrays:
        """The mean of the replies added so far, as new arrays in the dtypes of the replies.

        Raises
        ------
        ValueError
            No reply was added.
        """
        if self.count == 0:
            raise ValueError("the mean of no replies is undefined")
        return {name: self._finish(name, template) for name, template in self._template.items()}

    def _finish(self, name: str, template: NDArray[Any]) -> NDArray[Any]:
        if is_float(template):
            return self._means[name].result(template.dtype)
        if self.integers == "newest":
            return self._integers[name].copy()
        offset = self._integers[name] / self.total_weight
        lower = np.floor(offset)
        integer = template.astype(np.int64) + lower.astype(np.int64)
        remainder = offset - lower
        upwards = (remainder > 0.5) | ((remainder == 0.5) & (integer % 2 != 0))
        return np.asarray(integer + upwards).astype(template.dtype)


def stretched(current: Arrays, mean: Arrays, factor: float, buffers: Buffers) -> Arrays:
    """The mean with its parameters at ``factor`` times their distance from the current ones; 1 returns it as it is."""
    if factor == 1:
        return mean
    moved = {}
    for name, array in buffers.parameters(mean).items():
        before = current[name].astype(np.float64)
        moved[name] = np.asarray(before + factor * (array - before), dtype=array.dtype)
    return {**mean, **moved}


def fold(mean: NDArray[Any], value: NDArray[Any], share: float) -> None:
    """Subtract share · (mean − value) from a mean, in place and in its dtype.

    Equal replies return bit for bit: −0 − (−0) is +0, and −0 − (+0) is −0. Adding share · (value − mean) would turn a
    mean of −0 into +0.

    Parameters
    ----------
    mean : array of float32 or float64
        Contiguous in any order of its axes.
    value : array
        Floating-point, in the shape of ``mean``.
    share : float
        In [0, 1].
    """
    if mean.size <= BLOCK:
        _fold_block(mean, value, share, np.empty_like(mean))
        return
    means, values = aligned(mean, value)

    def fold_range(begin: int, end: int) -> None:
        steps = np.empty(BLOCK, means.dtype)
        for block in blocks(begin, end):
            part = means[block]
            _fold_block(part, values[block], share, steps[: part.size])

    spread(fold_range, means.size)


def fold_change(mean: NDArray[Any], change: Change, share: float) -> None:
    """As :func:`fold`, of a mean of changes in C order; with a share of 1, the mean becomes the change."""
    means = mean.reshape(-1)

    def fold_range(begin: int, end: int) -> None:
        for block, part in zip(blocks(begin, end), change.read(begin, end, means.dtype), strict=True):
            if share == 1:
                means[block] = part
            else:
                _fold_block(means[block], part, share, part)

    spread(fold_range, means.size)


def _fold_block(mean: NDArray[Any], value: NDArray[Any], share: float, step: NDArray[Any]) -> None:
    if value.dtype != mean.dtype:  # NumPy converts a whole block faster than within a subtraction of mixed types
        np.copyto(step, value)
        value = step
    np.subtract(mean, value, out=step)
    np.multiply(step, share, out=step)
    np.subtract(mean, step, out=mean)


def _difference(value: NDArray[Any], origin: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(value.astype(np.int64) - origin.astype(np.int64))
