"""Named arrays: the form in which the server handles parameters.

A model's parameters are a dictionary from ``state_dict`` names to NumPy arrays, in ``state_dict`` order.
Flower sends them in serialised form, as an ``ArrayRecord``.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from . import npy

Arrays = dict[str, NDArray[Any]]


def from_record(record: ArrayRecord) -> Arrays:
    """Decode a received record.

    Parameters
    ----------
    record : ArrayRecord
        Named arrays as Flower serialises them, in any order and of any shape, including 0-d and empty arrays.

    Returns
    -------
    dict of arrays
        The same names in the same order; writable arrays in the dtypes and shapes of the sender.

    Raises
    ------
    ValueError
        An array cannot be decoded; the message contains its name. The sender is at fault, so a server should refuse
        the reply.
    """
    return {name: array.copy(order="K") for name, array in views(record).items()}


def views(record: ArrayRecord) -> Arrays:
    """As :func:`from_record`, but the arrays are read-only views of the record, which take no memory.

    Raises
    ------
    ValueError
        As :func:`from_record`.
    """
    found: Arrays = {}
    for name, array in record.items():
        try:
            found[name] = npy.decode(array)
        except ValueError as error:
            raise ValueError(f"array {name!r} cannot be decoded: {error}") from error
    return found


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Serialise named arrays for Flower, keeping names, order, shapes and dtypes.

    Raises
    ------
    ValueError
        An array contains Python objects, which Flower does not serialise.
    """
    record = ArrayRecord()
    for name, array in arrays.items():
        # NumPy's reductions turn 0-d arrays into scalars; asarray turns them back.
        record[name] = npy.encode(np.asarray(array))
    return record


def select(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Select the names that match at least one pattern.

    Parameters
    ----------
    names : iterable of str
        Parameter names, or a dictionary with the names as keys.
    patterns : sequence of str
        Case-sensitive shell-style patterns (``*``, ``?``, ``[ab]``) for the whole name. ``["*"]`` selects all names,
        an empty list none.

    Returns
    -------
    list of str
        The selected names, in the order of ``names``.

    Raises
    ------
    ValueError
        A pattern matches no name (often a misspelling).
    TypeError
        ``patterns`` is a single string, whose characters would be used as patterns.
    """
    if isinstance(patterns, str):
        raise TypeError(f"patterns must be a list of patterns, such as [{patterns!r}], not a string")
    candidates = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in candidates):
            available = ", ".join(candidates) or "none"
            raise ValueError(f"pattern {pattern!r} matches no parameter; the names are: {available}")
    return [name for name in candidates if any(fnmatchcase(name, pattern) for pattern in patterns)]


def nbytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Size of all values in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())


def is_float(array: NDArray[Any]) -> bool:
    """Whether the array holds real floating-point numbers, which can be averaged."""
    return array.dtype.kind == "f"


def is_discrete(array: NDArray[Any]) -> bool:
    """Whether the array holds integers or booleans (counters, masks), which are never averaged into floats."""
    return np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_


def check_kinds(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Check that all arrays can be aggregated.

    Raises
    ------
    TypeError
        An array is neither floating-point, integer nor boolean.
    """
    for name, array in arrays.items():
        if not (is_float(array) or is_discrete(array)):
            raise TypeError(f"array {name!r} has dtype {array.dtype}: must be floating-point, integer or boolean")


def check_alike(expected: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> None:
    """Check that two sets of arrays have the same names, shapes and dtypes, in any order.

    Raises
    ------
    ValueError
        They differ; the message contains the name of the array and both dtypes and shapes.
    """
    if expected.keys() != other.keys():
        missing = sorted(expected.keys() - other.keys())
        extra = sorted(other.keys() - expected.keys())
        raise ValueError(f"array names differ: missing {missing}, unexpected {extra}")
    for name, array in expected.items():
        if (array.shape, array.dtype) != (other[name].shape, other[name].dtype):
            raise ValueError(
                f"array {name!r} must be {array.dtype}{list(array.shape)}, "
                f"not {other[name].dtype}{list(other[name].shape)}"
            )
