"""Aggregates of replies: the form that all have, and the streaming weighted mean.

The mean keeps no reply, so its memory is a constant number of model copies for any number of nodes. It is the
aggregation of Federated Averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1).
"""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from ..arrays import Arrays, Buffers, check_alike, check_kinds, is_discrete, is_float
from ..blocks import BLOCK, aligned, blocks, spread

IntegerPolicy = Literal["newest", "round"]


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


@dataclass
class StreamingMean:
    """Weighted mean Σ w_k θ_k / Σ w_k of named arrays with the same names, shapes and dtypes.

    Floating-point arrays are averaged in float64 by the running form of the mean, m ← m − w_k/W (m − θ_k), and returned
    in their own dtype. Unlike a sum that is divided at the end, this form returns a single reply, and any number of
    equal replies, bit for bit, in float64 too.

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
    _means: Arrays = field(default_factory=dict, init=False, repr=False)
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
        arrays : dict of arrays
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
        if not (np.isfinite(weight) and weight > 0):
            raise ValueError(f"weight = {weight!r}: must be finite and above 0")
        first = self.count == 0
        if first:
            self._begin(arrays)
        check_alike(self._template, arrays)
        self.count += 1
        self.total_weight += float(weight)
        share = float(weight) / self.total_weight
        for name, value in arrays.items():
            if is_float(value):
                if not first:  # the mean of one reply is the reply
                    fold(self._means[name], value, share)
            elif self.integers == "newest":
                self._means[name] = value.copy()
            else:
                self._means[name] += float(weight) * _difference(value, self._template[name])

    def _begin(self, arrays: Arrays) -> None:
        check_kinds(arrays)
        for name, value in arrays.items():
            averaged = is_discrete(value) and self.integers == "round"
            self._means[name] = np.zeros(value.shape) if averaged else np.array(value, dtype=np.float64)
            self._template[name] = value.copy() if averaged else np.broadcast_to(np.zeros((), value.dtype), value.shape)

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
        if is_float(template) or self.integers == "newest":
            return self._means[name].astype(template.dtype)
        offset = self._means[name] / self.total_weight
        lower = np.floor(offset)
        integer = template.astype(np.int64) + lower.astype(np.int64)
        remainder = offset - lower
        upwards = (remainder > 0.5) | ((remainder == 0.5) & (integer % 2 != 0))
        return np.asarray(integer + upwards).astype(template.dtype)


@dataclass(frozen=True)
class Scaled:
    """The same aggregate, in which a reply counts ``share`` > 0 times its weight."""

    aggregate: Aggregate
    share: float

    @property
    def count(self) -> int:
        """Number of replies added."""
        return self.aggregate.count

    @property
    def total_weight(self) -> float:
        """Sum of the scaled weights."""
        return self.aggregate.total_weight

    @property
    def defined(self) -> bool:
        """Whether there is a result."""
        return self.aggregate.defined

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add one reply."""
        self.aggregate.add(arrays, weight * self.share)

    def result(self) -> Arrays:
        """The aggregate."""
        return self.aggregate.result()


def stretched(current: Arrays, mean: Arrays, factor: float, buffers: Buffers) -> Arrays:
    """The mean with its parameters at ``factor`` times their distance from the current ones; 1 returns it as it is."""
    if factor == 1:
        return mean
    moved = {}
    for name, array in buffers.parameters(mean).items():
        before = current[name].astype(np.float64)
        moved[name] = np.asarray(before + factor * (array - before), dtype=array.dtype)
    return {**mean, **moved}


def fold(mean: NDArray[np.float64], value: NDArray[Any], share: float) -> None:
    """Subtract share · (mean − value) from a float64 mean, in place.

    Equal replies return bit for bit: −0 − (−0) is +0, and −0 − (+0) is −0. Adding share · (value − mean) would turn a
    mean of −0 into +0.

    Parameters
    ----------
    mean : array of float64
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
        steps = np.empty(BLOCK)
        for block in blocks(begin, end):
            part = means[block]
            _fold_block(part, values[block], share, steps[: part.size])

    spread(fold_range, means.size)


def _fold_block(mean: NDArray[Any], value: NDArray[Any], share: float, step: NDArray[Any]) -> None:
    np.copyto(step, value)  # NumPy converts a whole block faster than within a subtraction of mixed types
    np.subtract(mean, step, out=step)
    np.multiply(step, share, out=step)
    np.subtract(mean, step, out=mean)


def _difference(value: NDArray[Any], origin: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(value.astype(np.int64) - origin.astype(np.int64))
