"""Named arrays: the form in which the server handles parameters, and how Flower sends them.

A model's parameters are a dictionary from ``state_dict`` names to NumPy arrays, in ``state_dict`` order. Flower sends
them as an ``ArrayRecord``, each in NumPy's file format. ``np.load`` and ``np.save`` copy the values two or three times
and parse the header of every array. Here decoding copies nothing, encoding copies once, and a header that was seen
before is not parsed again.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from numpy.typing import NDArray

from . import wire

Arrays = dict[str, NDArray[Any]]
#: The parts of a name that are numbers, such as those of layers.
_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")


def shared_record(content: RecordDict) -> ArrayRecord:
    """The record of the shared arrays in a message or a reply. Raises ``ValueError`` if there is none."""
    record = content.get(wire.ARRAYS)
    if not isinstance(record, ArrayRecord):
        names = ", ".join(content) or "none"
        raise ValueError(f"the message has no ArrayRecord {wire.ARRAYS!r}, only: {names}")
    return record


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
    arrays: Arrays = {}
    for name, array in record.items():
        try:
            arrays[name] = decode(array)
        except ValueError as error:
            raise ValueError(f"array {name!r} cannot be decoded: {error}") from error
    return arrays


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
        record[name] = encode(np.asarray(array))
    return record


def without(arrays: Mapping[str, NDArray[Any]], names: Iterable[str]) -> Arrays:
    """The arrays that are not named, in their order."""
    left_out = set(names)
    return {name: array for name, array in arrays.items() if name not in left_out}


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


def shortened(names: Iterable[str]) -> str:
    """List names for people: those that differ only in the numbers of layers as one, with ``*`` and how many they are.

    ``layer.0.weight``, ``layer.1.weight`` and ``bias`` are "layer.*.weight (2), bias".
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBERS.sub("*", name), []).append(name)
    return ", ".join(one[0] if len(one) == 1 else f"{form} ({len(one)})" for form, one in alike.items())


def nbytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Size of all values in bytes, without names and headers."""
    return sum(array.nbytes for array in arrays.values())


def is_float(array: NDArray[Any]) -> bool:
    """Whether the array holds real floating-point numbers, which can be averaged."""
    return array.dtype.kind == "f"


def is_discrete(array: NDArray[Any]) -> bool:
    """Whether the array holds integers or booleans (counters, masks), which are never averaged into floats."""
    return np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_


@dataclass(frozen=True)
class Buffers:
    """Which arrays are buffers: state of a model that is not trained, such as the statistics of a normalisation.

    Names whose last part is one of :data:`~.wire.STATISTICS` always are; integer and boolean arrays count as buffers in
    :meth:`parameters`. Buffers are averaged. They take no step of a server optimizer, get no noise, and enter neither
    norms nor distances.

    Parameters
    ----------
    patterns : tuple of str
        Glob patterns of further buffers.
    """

    patterns: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return last_part(name) in wire.STATISTICS or any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def parameters(self, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
        """The arrays that are trained: those of floating-point numbers that are no buffers."""
        return {name: array for name, array in arrays.items() if is_float(array) and name not in self}


def last_part(name: str) -> str:
    """The name of an array within its module, such as ``running_var`` for ``block.1.running_var``."""
    return name.rpartition(".")[2]


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


#: Elements that :func:`in_blocks` takes at a time: 256 KiB in float64.
BLOCK = 1 << 15


def in_blocks(first: NDArray[Any], *others: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Corresponding parts of arrays of the same shape, each small enough for the processor's cache.

    An expression over whole arrays reads and writes memory for every intermediate result; in a block, these stay in the
    cache. The results have the same bits, because every element is computed as before.

    Parameters
    ----------
    first : array
        If it is contiguous in any order of its axes, its parts are views, into which can be written.
    *others : arrays
        In the shape of ``first``. They are copied only if their elements are in another order in memory.

    Yields
    ------
    tuple of arrays
        One-dimensional; arrays of at most :data:`BLOCK` elements as they are.
    """
    if first.size <= BLOCK:
        yield first, *others
        return
    flat = [_flat(first), *(_flat(_in_order_of(first, other)) for other in others)]
    for begin in range(0, first.size, BLOCK):
        yield tuple(array[begin : begin + BLOCK] for array in flat)


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return array.reshape(-1, order="A") if contiguous else array.ravel(order="K")


def _in_order_of(first: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    rows_first = first.flags.c_contiguous and other.flags.c_contiguous
    columns_first = first.flags.f_contiguous and other.flags.f_contiguous
    if rows_first or columns_first:
        return other
    copied = np.empty_like(first, dtype=other.dtype)
    copied[...] = other
    return copied


_STYPE = "numpy.ndarray"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SIZE_BYTES = {(1, 0): 2, (2, 0): 4}  # of the field that has the length of the header
_MAGIC = np.lib.format.MAGIC_LEN
_HEADERS_KEPT = 256  # NumPy refuses headers of more than 10,000 bytes, so they need at most 2.5 MB

_Header = tuple[tuple[int, ...], Literal["C", "F"], np.dtype[Any], int]


def decode(array: Array) -> NDArray[Any]:
    """The values of a received array as a read-only view of its bytes.

    Raises
    ------
    ValueError
        The bytes are not an array of numbers, or they are more or fewer than the header states.
    """
    # The bytes come from another machine. NumPy's header reader can raise almost any exception on malicious input
    # (tokenize.TokenError, for example).
    try:
        if array.stype != _STYPE:
            raise ValueError(f"it is serialised as {array.stype!r}, not as {_STYPE!r}")
        data = array.data
        begin = _header_end(data[: _MAGIC + 4])
        shape, order, dtype, stated = _header(data[:begin])
        if stated != len(data) - begin:
            raise ValueError(f"its header states {stated} bytes, but it has {len(data) - begin}")
        return np.ndarray(shape, dtype, data, begin, order=order)
    except Exception as error:
        raise ValueError(str(error)) from error


def encode(array: NDArray[Any]) -> Array:
    """An array in the form in which Flower sends it, with the same bytes as ``Array(array)``.

    Raises
    ------
    ValueError
        The array contains Python objects, which Flower does not serialise.
    """
    if not is_plain(array):
        return Array(array)
    fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    values = np.ascontiguousarray(array.T if fortran_order else array).reshape(-1).view(np.uint8)
    header, dtype = _header_bytes(array.shape, fortran_order, array.dtype)
    # Flower's constructor takes longer: it compares its arguments with three signatures.
    encoded = object.__new__(Array)
    encoded.dtype, encoded.shape, encoded.stype = dtype, array.shape, _STYPE
    encoded.data = b"".join((header, values.data))
    return encoded


def is_plain(array: object) -> bool:
    """Whether :func:`encode` encodes an array itself: one of numbers, without fields or Python objects."""
    return isinstance(array, np.ndarray) and not (array.dtype.hasobject or array.dtype.names)


@lru_cache(_HEADERS_KEPT)
def _header_end(start: bytes) -> int:
    """Where the values begin in a serialised array that begins with these bytes."""
    version = np.lib.format.read_magic(BytesIO(start))
    if version not in _READERS:
        raise ValueError(f"NumPy format version {version}: must be one of {', '.join(map(str, _READERS))}")
    begin = _MAGIC + _SIZE_BYTES[version]
    return begin + int.from_bytes(start[_MAGIC:begin], "little")


@lru_cache(_HEADERS_KEPT)
def _header(start: bytes) -> _Header:
    """Shape, order of the axes, dtype and number of bytes that the header of a serialised array states."""
    stream = BytesIO(start)
    version = np.lib.format.read_magic(stream)
    shape, fortran_order, dtype = _READERS[version](stream)
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    if not dtype.itemsize:  # a message of any size could hold any number of them
        raise ValueError(f"its elements are {dtype}, which have no bytes")
    return shape, "F" if fortran_order else "C", dtype, prod(shape) * dtype.itemsize


@lru_cache(_HEADERS_KEPT)
def _header_bytes(shape: tuple[int, ...], fortran_order: bool, dtype: np.dtype[Any]) -> tuple[bytes, str]:
    """The header of an array, and the name of its dtype."""
    stream = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue(), str(dtype)
