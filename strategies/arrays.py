"""Named arrays: the one form in which parameters are handled on the server.

A model's parameters are a dictionary from ``state_dict`` names to NumPy arrays, in ``state_dict`` order.
Flower carries the same in serialised form, as an ``ArrayRecord``.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def from_record(record: ArrayRecord) -> Arrays:
    """Decode a record that came over the wire.

    Parameters
    ----------
    record : ArrayRecord
        Named arrays as Flower serialises them: any order, any shapes, 0-d and empty ones included.

    Returns
    -------
    dict of arrays
        The same names in the same order; writable arrays with the dtypes and shapes they were sent with.

    Raises
    ------
    ValueError
        An array cannot be decoded; the message has its name. The sender is at fault, so a server should count
        the reply as refused.
    """
    return {name: _decode(name, array) for name, array in record.items()}


def outlines(record: ArrayRecord) -> Arrays:
    """The shapes and dtypes that a record would be decoded to, as views of one element: this needs no memory.

    Raises ``ValueError`` with the name of the first array that cannot be decoded, also where its bytes are more or
    fewer than its header says.
    """
    return {name: _outline(name, array) for name, array in record.items()}


def _decode(name: str, array: Array) -> NDArray[Any]:
    _outline(name, array)  # from here on no more memory is taken than the bytes that came
    try:
        decoded: NDArray[Any] = array.numpy()
    except (ValueError, MemoryError) as error:
        raise ValueError(f"array {name!r} cannot be decoded: {error}") from error
    return decoded


def _outline(name: str, array: Array) -> NDArray[Any]:
    # The bytes come from another machine. What NumPy's reader of headers raises on hostile ones is not foreseeable
    # (a tokenize.TokenError, for one); and np.load takes the memory that a header asks for before it looks for data.
    try:
        if array.stype != "numpy.ndarray":
            raise ValueError(f"it is serialised as {array.stype!r}, not as 'numpy.ndarray'")
        stream = BytesIO(array.data)
        version = np.lib.format.read_magic(stream)
        if version not in _HEADERS:
            raise ValueError(f"NumPy's format {version} is none of {', '.join(map(str, _HEADERS))}")
        shape, _, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        said, there = prod(shape) * dtype.itemsize, len(array.data) - stream.tell()
        if said != there:
            raise ValueError(f"its header tells of {said} bytes, but there are {there}")
        return np.broadcast_to(np.zeros((), dtype), shape)
    except Exception as error:
        raise ValueError(f"array {name!r} cannot be decoded: {error}") from error


def to_record(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Serialise named arrays for Flower; names, order, shapes and dtypes are kept.

    Raises ``ValueError`` for an array of Python objects, which Flower does not serialise.
    """
    # NumPy's reductions give scalars where an array had no dimensions: asarray makes them 0-d arrays again.
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def select(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Names that match at least one of the patterns.

    Parameters
    ----------
    names : iterable of str
        Parameter names, or a dictionary that has them as keys.
    patterns : sequence of str
        Shell-style patterns (``*``, ``?``, ``[ab]``) for the whole name, case-sensitive. ``["*"]`` selects
        every name, an empty list none.

    Returns
    -------
    list of str
        The selected names, in the order of ``names``.

    Raises
    ------
    ValueError
        A pattern matches no name, which is most often a misspelling.
    TypeError
        ``patterns`` is one string, whose letters would be taken for patterns.
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
    """Size of the values in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())


def is_float(array: NDArray[Any]) -> bool:
    """Whether the values are real floating-point numbers, which may be averaged."""
    return np.issubdtype(array.dtype, np.floating)


def is_discrete(array: NDArray[Any]) -> bool:
    """Whether the values are integers or booleans: counters and masks, never averaged into floats."""
    return np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_


def check_alike(expected: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> None:
    """Hold two sets of arrays to the same names, shapes and dtypes; the order of names is free.

    Raises ``ValueError`` with the name and both forms where they differ.
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
