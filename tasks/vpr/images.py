"""Images from files, archives and arrays, decoded on demand and cached up to a limit.

Pixels are read as they are stored: the rotation of EXIF is ignored. What is no 8-bit image is described in
:mod:`fedapps.tasks.vision`.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Protocol

import numpy as np
import torch
from fedapps.tasks.vision import MAX_PIXELS, as_rgb, decoded
from PIL import Image
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.text_files import UNREADABLE

#: Height and width in pixels.
Size = tuple[int, int]
#: The key of the largest number of pixels.
LIMIT = "vpr.max-pixels"
_REPLACE = (
    "replace it, or remove it from the table that lists it (vpr.skip-unreadable only detects damage in the first and "
    "last bytes)"
)


class ImageSource(Protocol):
    """A numbered collection of images."""

    def __len__(self) -> int: ...

    def decode(self, index: int) -> Image.Image:
        """Decode one image in RGB. Raise :class:`DataError` if it is missing, damaged or of an unsupported mode."""


@dataclass(frozen=True)
class ImageFiles:
    """Image files in a folder; ``names`` are relative paths. Images of more than ``max_pixels`` are refused."""

    folder: Path
    names: Sequence[str]
    max_pixels: int = MAX_PIXELS

    def __len__(self) -> int:
        return len(self.names)

    def decode(self, index: int) -> Image.Image:
        return _decoded(self, index, str(self.folder / self.names[index]), "file")

    def name(self, index: int) -> str:
        """Return the name of an image, for messages."""
        return self.names[index]

    def open(self, index: int) -> BinaryIO:
        """Open the bytes of an image. Raise ``OSError`` if they cannot be read."""
        return (self.folder / self.names[index]).open("rb")

    def absent(self) -> list[int]:
        """Return the images without a file. Each folder is listed once; only unlisted files are checked one by one."""
        at = [os.path.split(name) for name in self.names]
        names = {inside: _listed(self.folder / inside) for inside in {inside for inside, _ in at}}
        unlisted = [index for index, (inside, name) in enumerate(at) if name not in names[inside]]
        return [index for index in unlisted if not _is_file(self.folder / self.names[index])]


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Images in memory: ``pixels`` uint8 or uint16 ``[n, H, W]`` (grey), or uint8 ``[n, H, W, 3]`` (colour)."""

    pixels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def decode(self, index: int) -> Image.Image:
        return as_rgb(Image.fromarray(self.pixels[index]))


@dataclass(frozen=True)
class ImageTar:
    """Images in an uncompressed tar archive.

    Attributes
    ----------
    path : Path
        The archive.
    members : sequence of (str, int, int)
        Name, first byte and number of bytes of each image. The first byte is -1 if the archive does not contain the
        image.
    max_pixels : int
        Images of more pixels are refused.
    """

    path: Path
    members: Sequence[tuple[str, int, int]]
    max_pixels: int = MAX_PIXELS

    @classmethod
    def of(cls, path: Path, names: Iterable[str]) -> ImageTar:
        """Find the members ``names`` in the archive, which need not contain all of them.

        Raises
        ------
        DataError
            The archive cannot be read.
        """
        try:
            with tarfile.open(path, "r:") as archive:
                members = {member.name: (member.name, member.offset_data, member.size) for member in archive}
        except (*UNREADABLE, ValueError, tarfile.TarError) as error:
            raise DataError(f"{path}: cannot be read as an uncompressed tar archive: {error}") from error
        return cls(path, [members.get(name, (name, -1, 0)) for name in names])

    def __len__(self) -> int:
        return len(self.members)

    def decode(self, index: int) -> Image.Image:
        return _decoded(self, index, f"{self.path}, {self.name(index)}", "member")

    def name(self, index: int) -> str:
        """Return the name of an image, for messages."""
        return self.members[index][0]

    def open(self, index: int) -> BinaryIO:
        """Open the bytes of an image. Raise ``OSError`` if they cannot be read."""
        name, start, size = self.members[index]
        if start < 0:
            raise FileNotFoundError(f"{self.path}: has no member {name}")
        with self.path.open("rb") as archive:
            archive.seek(start)
            return io.BytesIO(archive.read(size))

    def absent(self) -> list[int]:
        """Return the images that the archive does not contain."""
        return [i for i, (_, start, _) in enumerate(self.members) if start < 0]


class ImageStore:
    """Loads the images of a source as tensors. The most recently used ones stay in memory, up to ``capacity`` bytes."""

    def __init__(self, source: ImageSource, capacity: int = 2**29) -> None:
        self.source = source
        self.capacity = capacity
        self._kept: OrderedDict[tuple[int, Size], Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.source)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the cached images."""
        return ImageStore, (self.source, self.capacity)

    def limit(self, max_pixels: int) -> None:
        """Refuse the images of files that have more pixels."""
        if isinstance(self.source, (ImageFiles, ImageTar)):
            self.source = replace(self.source, max_pixels=max_pixels)

    def load(self, indices: Sequence[int] | np.ndarray, size: Size) -> Tensor:
        """Load images in RGB, uint8 ``[n, 3, H, W]``, resized bilinearly to ``size`` = (H, W) regardless of aspect
        ratio.

        Raises
        ------
        DataError
            An image is missing or damaged.
        """
        images = torch.empty(len(indices), 3, *size, dtype=torch.uint8)
        for row, index in enumerate(indices):
            images[row] = self._one(int(index), size)
        return images

    def _one(self, index: int, size: Size) -> Tensor:
        with self._lock:
            if (image := self._kept.get((index, size))) is not None:
                self._kept.move_to_end((index, size))
                return image
        from torchvision.transforms.v2 import functional

        decoded = functional.pil_to_tensor(self.source.decode(index))
        tensor: Tensor = functional.resize(decoded, list(size), antialias=True).contiguous()
        self._keep((index, size), tensor)
        return tensor

    def _keep(self, key: tuple[int, Size], tensor: Tensor) -> None:
        with self._lock:
            if key in self._kept or tensor.nbytes > self.capacity:
                return
            self._kept[key] = tensor
            self._bytes += tensor.nbytes
            while self._bytes > self.capacity:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes


def _decoded(source: ImageFiles | ImageTar, index: int, name: str, what: str) -> Image.Image:
    try:
        with source.open(index) as file:
            return decoded(file.read(), name, source.max_pixels, limit=LIMIT, replace=_REPLACE)
    except FileNotFoundError as error:
        raise DataError(f"{name}: no such {what}, although a table lists it") from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from error


def _is_file(path: Path) -> bool:
    """Whether there is such a file; no, if the name is too long for a file."""
    try:
        return path.is_file()
    except OSError:
        return False


def _listed(folder: Path) -> frozenset[str]:
    """The names of the files in a folder; none if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()
