"""Validated access to the arrays in a node's ``traces.safetensors``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedapps.base.errors import ReportError

Array = npt.NDArray[np.float64]


class Arrays:
    """The arrays of one ``traces.safetensors``. All errors name the file and the array.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    ReportError
        If the file is not a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self._where = "/".join(path.parts[-4:])
        try:
            self._arrays: Mapping[str, npt.NDArray[np.generic]] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ReportError(f"{self._where}: not a safetensors file: {error}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    def get(self, key: str, *shape: int | None) -> Array:
        """An array as float64.

        Parameters
        ----------
        key : str
            Name of the array.
        *shape : int or None
            Required shape; None: any length.

        Raises
        ------
        ReportError
            If the array is missing or has a different shape.
        """
        if key not in self._arrays:
            raise self.fail(key, "is missing")
        array = self._arrays[key].astype(np.float64)
        fits = array.ndim == len(shape) and all(
            want in (None, have) for want, have in zip(shape, array.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise self.fail(key, f"has shape {array.shape}; it must be ({wanted})")
        return array

    def text(self, key: str) -> str:
        """The text stored in an array of UTF-8 bytes.

        Raises
        ------
        ReportError
            If the array is missing or not valid UTF-8.
        """
        raw = self._bounded(key, self.get(key, None), 255)
        try:
            return raw.astype(np.uint8).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(key, f"is not UTF-8: {error}") from error

    def pixels(self, key: str, *shape: int | None) -> npt.NDArray[np.uint8]:
        """Image data as uint8; see :meth:`get`.

        Raises
        ------
        ReportError
            As :meth:`get`, and if a value is not a whole number from 0 to 255.
        """
        return self._bounded(key, self.get(key, *shape), 255).astype(np.uint8)

    def indices(self, key: str, below: int, *shape: int | None) -> npt.NDArray[np.int64]:
        """Indices from 0 to ``below`` - 1; see :meth:`get`.

        Raises
        ------
        ReportError
            As :meth:`get`, and if a value is not such an index.
        """
        return self._bounded(key, self.get(key, *shape), below - 1).astype(np.int64)

    def _bounded(self, key: str, array: Array, most: int) -> Array:
        if not ((array >= 0) & (array <= most) & (array == np.floor(array))).all():
            raise self.fail(key, f"must hold whole numbers from 0 to {most}")
        return array

    def fail(self, key: str, wrong: str) -> ReportError:
        """The exception to raise for an invalid array."""
        return ReportError(f"{self._where}: {key!r} {wrong}")
