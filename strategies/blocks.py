"""Elementwise work on large arrays, block by block through the processor's cache and on several threads.

An expression over whole arrays reads and writes memory for every intermediate result. In blocks, these stay in the
cache. The results have the same bits, because every element is computed as before.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

#: Elements of a block: 256 KiB in float64.
BLOCK = 1 << 15
_PER_THREAD = 1 << 20  # elements; less work than this is not worth a thread
_MAX_THREADS = 4  # more would wait for memory

Result = TypeVar("Result")


def spread(work: Callable[[int, int], Result], size: int) -> list[Result]:
    """Call ``work(begin, end)`` on ranges that partition ``range(size)``, on as many threads as are useful.

    NumPy releases Python's lock in its loops. The number of threads is that of the usable cores, or
    ``OMP_NUM_THREADS``, and at most 4.

    Parameters
    ----------
    work : function of two ints
        Must not depend on how ranges are cut. It gets a single range if ``size`` is small.
    size : int
        ≥ 0.

    Returns
    -------
    list
        The results in the order of the ranges.
    """
    if size < 2 * _PER_THREAD or (threads := min(_usable_threads(), size // _PER_THREAD)) < 2:
        return [work(0, size)]
    ends = [size * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, ends[:-1], ends[1:]))


def blocks(begin: int, end: int) -> Iterator[slice]:
    """Slices of at most :data:`BLOCK` elements that partition a range."""
    for start in range(begin, end, BLOCK):
        yield slice(start, min(start + BLOCK, end))


def aligned(*arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The arrays, which have the same shape, as one-dimensional arrays with corresponding elements.

    The first array must be contiguous in any order of its axes, and its result is a view of it. The others are copied
    only if their elements are in another order.
    """
    first, *others = arrays
    flat = first.reshape(-1, order="A") if _contiguous(first) else first.ravel(order="K")
    return flat, *(_in_order_of(first, other) for other in others)


def _in_order_of(first: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    same = (first.flags.c_contiguous and other.flags.c_contiguous) or (
        first.flags.f_contiguous and other.flags.f_contiguous
    )
    if not same:
        copied = np.empty_like(first, dtype=other.dtype)
        copied[...] = other
        other = copied
    return other.reshape(-1, order="A") if _contiguous(other) else other.ravel(order="K")


def _contiguous(array: NDArray[Any]) -> bool:
    return array.flags.c_contiguous or array.flags.f_contiguous


def _usable_threads() -> int:
    stated = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(int(stated) if stated.isdecimal() and int(stated) else cores, _MAX_THREADS)
