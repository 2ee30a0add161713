"""NumPy's file format, in which Flower sends arrays: arrays as views of received bytes, and as bytes to send.

``np.load`` and ``np.save`` copy the values two or three times and parse the header of every array. Here decoding copies
nothing, encoding copies once, and a header that was seen before is not parsed again.
"""

from functools import lru_cache
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

_STYPE = "numpy.ndarray"
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_SIZE_BYTES = {(1, 0): 2, (2, 0): 4}  # of the field that has the length of the header
_MAGIC = np.lib.format.MAGIC_LEN
_HEADERS_KEPT = 256  # NumPy refuses headers of more than 10,000 bytes, so they need at most 2.5 MB

_Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


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
        version = np.lib.format.read_magic(BytesIO(data[:_MAGIC]))
        if version not in _READERS:
            raise ValueError(f"NumPy format version {version}: must be one of {', '.join(map(str, _READERS))}")
        begin = _MAGIC + _SIZE_BYTES[version]
        begin += int.from_bytes(data[_MAGIC:begin], "little")
        shape, fortran_order, dtype = _header(data[:begin], version)
        if dtype.hasobject:
            raise ValueError("it contains Python objects")
        stated, actual = prod(shape) * dtype.itemsize, len(data) - begin
        if stated != actual:
            raise ValueError(f"its header states {stated} bytes, but it has {actual}")
        return np.ndarray(shape, dtype, data, begin, order="F" if fortran_order else "C")
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
def _header(start: bytes, version: tuple[int, int]) -> _Header:
    stream = BytesIO(start)
    stream.seek(_MAGIC)
    return _READERS[version](stream)


@lru_cache(_HEADERS_KEPT)
def _header_bytes(shape: tuple[int, ...], fortran_order: bool, dtype: np.dtype[Any]) -> tuple[bytes, str]:
    """The header of an array, and the name of its dtype."""
    stream = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": descr, "fortran_order": fortran_order, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue(), str(dtype)
