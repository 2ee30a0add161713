"""Named arrays that a node left behind, read so that what is missing or misshapen is named with its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .json_files import ReportError

Array = npt.NDArray[np.float64]


class Arrays:
    """The arrays of a `traces.safetensors`.

    Raises:
        ReportError: the file is no such archive.
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
        """An array in float64. Raises `ReportError` when it is missing or has another shape; None: any length."""
        if key not in self._arrays:
            raise self.fail(key, "is missing")
        found = self._arrays[key].astype(np.float64)
        fits = found.ndim == len(shape) and all(
            want in (None, have) for want, have in zip(shape, found.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise self.fail(key, f"has the shape {found.shape}; it must be ({wanted})")
        return found

    def text(self, key: str) -> str:
        """The text in an array of UTF-8 bytes. Raises `ReportError` where it is missing or none."""
        raw = self._bounded(key, self.get(key, None), 255)
        try:
            return raw.astype(np.uint8).tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(key, f"is not UTF-8: {error}") from error

    def pixels(self, key: str, *shape: int | None) -> npt.NDArray[np.uint8]:
        """Pictures as `get` would give them, in bytes. Raises `ReportError` for what is no such picture too."""
        return self._bounded(key, self.get(key, *shape), 255).astype(np.uint8)

    def indices(self, key: str, below: int, *shape: int | None) -> npt.NDArray[np.int64]:
        """Places in something with `below` items. Raises `ReportError` for any other number."""
        return self._bounded(key, self.get(key, *shape), below - 1).astype(np.int64)

    def _bounded(self, key: str, found: Array, most: int) -> Array:
        if not ((found >= 0) & (found <= most) & (found == np.floor(found))).all():
            raise self.fail(key, f"must hold whole numbers from 0 to {most}")
        return found

    def fail(self, key: str, wrong: str) -> ReportError:
        """The error to raise about an array."""
        return ReportError(f"{self._where}: {key!r} {wrong}")
