"""Named arrays that a node left behind, read so that what is missing or misshapen is named with its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file

from .reading import ReportError

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

    def fail(self, key: str, wrong: str) -> ReportError:
        """The error to raise about an array."""
        return ReportError(f"{self._where}: {key!r} {wrong}")
