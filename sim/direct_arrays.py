"""Flower's arrays in one process: encoded with one copy of the values, and decoded with one.

``flwr.app.Array`` encodes with ``np.save`` and decodes with ``np.load``, which copy two or three times and parse a
header each time. Apps that follow Flower's template call them in every message. Within :func:`direct_arrays` both take
the way of :mod:`fedapps.strategies.arrays`. Bytes, arrays and errors are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedapps.strategies import arrays
from flwr.app import Array
from numpy.typing import NDArray


@contextmanager
def direct_arrays() -> Iterator[None]:
    """Replace two methods of ``flwr.app.Array`` until the context ends."""
    decode, encode = Array.numpy, Array.__dict__["from_numpy_ndarray"]

    def numpy(array: Array) -> NDArray[Any]:
        try:
            view = arrays.decode(array)
        except ValueError:
            return decode(array)  # raises Flower's error
        return view.copy(order="K")  # the app may write into it

    def from_numpy_ndarray(cls: type[Array], ndarray: NDArray[Any]) -> Array:
        if arrays.is_plain(ndarray):
            return arrays.encode(ndarray)
        array: Array = encode.__func__(cls, ndarray)
        return array

    Array.numpy = numpy  # type: ignore[method-assign, assignment]
    Array.from_numpy_ndarray = classmethod(from_numpy_ndarray)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Array.numpy = decode  # type: ignore[method-assign]
        Array.from_numpy_ndarray = encode  # type: ignore[method-assign]
