"""Arrays that nodes return as the change of what they received.

A mean averages the changes of compressed replies in blocks that stay in the processor's cache, so that neither time nor
memory goes into whole arrays. Code that reads an array gets it restored.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Buffers, NamedArrays
from .blocks import BLOCK, blocks, spread
from .checks import is_near, max_distance

_CHECKED = 4 * BLOCK  # values of 16 bits that are looked at together


@dataclass(frozen=True)
class Origin:
    """An array that nodes received. What is known of its values is computed once for all replies."""

    array: NDArray[Any]

    @cached_property
    def near(self) -> bool:
        """Whether all values are surely finite and within the limit of :func:`~.checks.check_values`."""
        with np.errstate(over="ignore", invalid="ignore"):
            return is_near(self.array)

    @cached_property
    def signed_zeros(self) -> bool:
        """Whether a value is −0, which a change of +0 would turn into +0."""
        parts = (self.flat[block] for block in blocks(0, self.flat.size))
        if self.array.dtype == np.float32:  # read as int32, −0 is the smallest number
            return any(part.view(np.int32).min() == -(2**31) for part in parts)
        return any(not part.all() and bool(np.signbit(part[part == 0]).any()) for part in parts)

    @cached_property
    def flat(self) -> NDArray[Any]:
        """The values in C order."""
        return self.array.reshape(-1)

    def in_its_order(self, array: NDArray[Any]) -> NDArray[Any]:
        """An array of this shape with its axes in the same order in memory."""
        if self.array.flags.c_contiguous:
            return array
        ordered = np.empty_like(self.array, array.dtype)
        ordered[...] = array
        return ordered

    def add_to(self, change: NDArray[Any], block: slice) -> None:
        """Add a block of the values, in C order, to their change, in place; where this is 0, the bits stay."""
        before = self.flat[block]
        still = change == 0 if self.signed_zeros else False
        np.add(before, change, out=change)
        if self.signed_zeros:
            np.copyto(change, before, where=still)


def origins_of(arrays: NamedArrays, buffers: Buffers) -> dict[str, Origin]:
    """The origins of the arrays that nodes train."""
    return {name: Origin(array) for name, array in buffers.parameters(arrays).items()}


class Change(ABC):
    """The change of an array's values, in C order, as a node sent it."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """At least the largest absolute change; infinite or not a number if a change is."""

    @abstractmethod
    def read(self, begin: int, end: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """The changes in each of the :func:`~.blocks.blocks` of a range.

        Parameters
        ----------
        begin, end : int
            The range.
        dtype : float32 or float64

        Yields
        ------
        array
            In ``dtype``. The next block overwrites it, and so may the caller.
        """


@dataclass(frozen=True)
class DenseChange(Change):
    """A change of all values: ``step`` times integers, or the upper halves of float32 if the values are unsigned.

    Parameters
    ----------
    values : array of int8 or uint16
        One-dimensional.
    step : float
        1 for upper halves.
    """

    values: NDArray[Any]
    step: float = 1.0

    @property
    def bound(self) -> float:
        if self.values.dtype == np.int8:
            return 128 * abs(self.step)

        def largest(begin: int, end: int) -> list[int]:
            parts = [self.values[start : min(start + _CHECKED, end)] for start in range(begin, end, _CHECKED)]
            # positive numbers as they are, and negative ones, whose first bit is set
            return [int(most) & 0x7FFF for part in parts for most in (max(part.view(np.int16).max(), 0), part.max())]

        bits = max((most for found in spread(largest, self.values.size) for most in found), default=0)
        return float(from_upper_half(np.array(bits, np.uint16)))

    def read(self, begin: int, end: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        changes = np.empty(min(BLOCK, end - begin), dtype)
        bits = changes.view(np.uint32)
        for block in blocks(begin, end):
            size = block.stop - block.start
            change = changes[:size]
            if self.values.dtype == np.int8:
                np.copyto(change, self.values[block])
                np.multiply(change, self.step, out=change)
            elif dtype == np.float32:
                np.copyto(bits[:size], self.values[block])
                np.left_shift(bits[:size], 16, out=bits[:size])
            else:
                np.copyto(change, from_upper_half(self.values[block]))
            yield change


@dataclass(frozen=True)
class SparseChange(Change):
    """A change of some values.

    Parameters
    ----------
    values : array of float32
        One-dimensional.
    places : array of unsigned integers
        Where they belong, ascending.
    """

    values: NDArray[Any]
    places: NDArray[Any]

    @property
    def bound(self) -> float:
        return float(np.abs(self.values).max(initial=0))

    def read(self, begin: int, end: int, dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        changes = np.empty(min(BLOCK, end - begin), dtype)
        ranges = list(blocks(begin, end))
        ends = np.searchsorted(self.places, [begin, *(block.stop for block in ranges)]).tolist()
        for block, first, last in zip(ranges, ends, ends[1:], strict=False):
            change = changes[: block.stop - block.start]
            change.fill(0)
            change[self.places[first:last].astype(np.intp) - block.start] = self.values[first:last]
            yield change


@dataclass(frozen=True)
class Changed:
    """An array that a node returned as a change.

    Parameters
    ----------
    origin : Origin
        What the node received.
    change : Change
    """

    origin: Origin
    change: Change

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.origin.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        return self.origin.array.dtype

    @property
    def sound(self) -> bool:
        """Whether the values surely pass :func:`~.checks.check_values`.

        A near value that changes by half the limit stays finite, and rounding leaves it within the limit of its origin.
        """
        return self.origin.near and self.change.bound <= max_distance(self.dtype) / 2

    def restored(self) -> NDArray[Any]:
        """The whole array: the sum in its dtype, or in float32 for float16; where the change is 0, the bits stay."""
        whole = np.empty(self.shape, self.dtype)
        flat, dtype = whole.reshape(-1), np.result_type(self.dtype, np.float32)

        def restore(begin: int, end: int) -> None:
            with np.errstate(over="ignore", invalid="ignore"):  # the server refuses values that are not finite
                for block, change in zip(blocks(begin, end), self.change.read(begin, end, dtype), strict=True):
                    self.origin.add_to(change, block)
                    flat[block] = change

        spread(restore, flat.size)
        return self.origin.in_its_order(whole)


class ChangedArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a reply, of which some are restored when they are first read.

    Parameters
    ----------
    parts : dict of arrays and Changed
    """

    def __init__(self, parts: dict[str, "NDArray[Any] | Changed"]) -> None:
        self.parts = parts

    def __getitem__(self, name: str) -> NDArray[Any]:
        part = self.parts[name]
        if isinstance(part, Changed):
            part = self.parts[name] = part.restored()
        return part

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def from_upper_half(values: NDArray[Any]) -> NDArray[np.float32]:
    """The float32 numbers whose upper 16 bits are given."""
    wide = np.asarray(values.astype(np.uint32))
    wide <<= 16
    return wide.view(np.float32)
