"""Aggregates of replies: the form that all have, the streaming weighted mean, and that of replies with masks.

The mean keeps no reply, so its memory is a constant number of model copies for any number of nodes. It is the
aggregation of Federated Averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1). Masks are those
of Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, Section 3.2
(https://arxiv.org/abs/2003.03196): nodes send the units of their base parameters that their masks select.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..arrays import Arrays, Buffers, check_alike, check_kinds, in_blocks, is_discrete, is_float

IntegerPolicy = Literal["newest", "round"]
#: Replies that are averaged in float32 before their mean enters the mean in float64.
GROUP = 16
#: Name -> which units of a floating-point array were sent: a boolean array with as many dimensions as the array and
#: length 1 along dimensions that the mask does not distinguish ([8, 1] for the rows of an [8, 3] matrix). An array
#: without a mask was sent completely.
Masks = Mapping[str, NDArray[np.bool_]]
_COMPLETE = np.ones((), dtype=np.bool_)


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

    def add(self, arrays: Arrays, weight: float) -> None:
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
    """

    __slots__ = ("_group", "_group_count", "_group_weight", "_merged", "_merged_weight")

    def __init__(self) -> None:
        self._group: NDArray[Any] | None = None  # the mean of the open group
        self._group_count, self._group_weight = 0, 0.0
        self._merged: NDArray[np.float64] | None = None  # the mean of the groups that are full
        self._merged_weight = 0.0

    def add(self, value: NDArray[Any], weight: float) -> None:
        """Add an array, which is neither kept nor changed; all must have the same shape and dtype.

        Parameters
        ----------
        value : array
            Finite, floating-point.
        weight : float
            Finite and above 0.
        """
        wide = value.dtype.itemsize > np.dtype(np.float32).itemsize
        if self._group_count == GROUP and not wide:
            self._merge()
        self._group_count += 1
        self._group_weight += float(weight)
        if self._group is None:
            self._group = value.astype(np.float64 if wide else np.float32)
        elif self._group_count == 1:
            self._group[...] = value
        else:
            fold(self._group, value, float(weight) / self._group_weight)

    def result(self, dtype: DTypeLike) -> NDArray[Any]:
        """The mean as a new array.

        Raises
        ------
        ValueError
            No array was added.
        """
        if self._group is None:
            raise ValueError("the mean of no arrays is undefined")
        result = self._group.astype(dtype)
        if self._merged is not None:
            share = self._group_weight / (self._merged_weight + self._group_weight)
            for part, merged, group in in_blocks(result, self._merged, self._group):
                mean = merged.copy()
                fold(mean, group, share)
                part[...] = mean
        return result

    def _merge(self) -> None:
        """Add the mean of the group to the mean of the groups, and begin the next group."""
        assert self._group is not None
        self._merged_weight += self._group_weight
        if self._merged is None:
            self._merged = self._group.astype(np.float64)
        else:
            fold(self._merged, self._group, self._group_weight / self._merged_weight)
        self._group_count, self._group_weight = 0, 0.0


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

    def add(self, arrays: Arrays, weight: float) -> None:
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
        if self.count == 0:
            self._begin(arrays)
        check_alike(self._template, arrays)
        self.count += 1
        self.total_weight += float(weight)
        for name, value in arrays.items():
            if name in self._means:
                self._means[name].add(value, weight)
            elif self.integers == "newest":
                self._integers[name] = value.copy()
            else:
                self._integers[name] += float(weight) * _difference(value, self._template[name])

    def _begin(self, arrays: Arrays) -> None:
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

    def add(self, arrays: Arrays, weight: float, masks: Masks) -> None:
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
        means = self._discrete.result()
        for name, template in self._template.items():
            if name in self._complete:
                means[name] = self._complete[name].result(template.dtype)
            elif name in self._means:
                means[name] = self._means[name].astype(template.dtype)
        return {name: means[name] for name in self._template}

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
        np.copyto(mean, value, where=new)
        np.subtract(mean, share * (mean - value), out=mean, where=mask)


def mask_error(masks: Mapping[str, NDArray[Any]], arrays: Arrays) -> str | None:
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
        if mask.ndim != len(shape) or any(
            length not in (1, full) for length, full in zip(mask.shape, shape, strict=True)
        ):
            return f"{name!r} has shape {list(mask.shape)}: must be {list(shape)}, or 1 along some dimensions"
        if not (mask.dtype == np.bool_ or np.issubdtype(mask.dtype, np.integer)) or not np.isin(mask, (0, 1)).all():
            return f"{name!r}: must hold booleans, or the integers 0 and 1"
    return None


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
    for part, new in in_blocks(mean, value):
        step = np.empty_like(part)
        if new.dtype != step.dtype:  # NumPy converts a whole block faster than within a subtraction of mixed types
            np.copyto(step, new)
            new = step
        np.subtract(part, new, out=step)
        np.multiply(step, share, out=step)
        np.subtract(part, step, out=part)


def _difference(value: NDArray[Any], origin: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(value.astype(np.int64) - origin.astype(np.int64))
