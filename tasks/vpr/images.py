"""Pictures out of files, archives and arrays, decoded when they are asked for and kept while there is room."""

from __future__ import annotations

import io
import os
import tarfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np
from PIL import Image

from tasks.profiles import DataError

if TYPE_CHECKING:
    from torch import Tensor

#: Height and width in pixels.
Size = tuple[int, int]
#: What decoding raises for bytes that are no picture, or a damaged one; SyntaxError for a broken PNG.
UNDECODABLE = (Image.DecompressionBombError, OSError, SyntaxError, ValueError)


class ImageSource(Protocol):
    """Where pictures come from, numbered from 0."""

    def __len__(self) -> int: ...

    def decode(self, index: int) -> Image.Image:
        """One picture. Raises :class:`DataError` where it is missing or damaged."""


@dataclass(frozen=True)
class ImageFiles:
    """Picture files below a folder, ``names`` relative to it."""

    folder: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def decode(self, index: int) -> Image.Image:
        path = self.folder / self.names[index]
        try:
            return _decoded(path.read_bytes(), str(path))
        except FileNotFoundError as error:
            raise DataError(f"{path}: no such picture, though a table names it") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error

    def name(self, index: int) -> str:
        """What a picture is called, for errors."""
        return self.names[index]

    def open(self, index: int) -> BinaryIO:
        """The bytes of a picture. Raises ``OSError`` where they cannot be read."""
        return (self.folder / self.names[index]).open("rb")

    def absent(self) -> list[int]:
        """The pictures of which there is no file. Folders are listed once each; only what they lack is asked for."""
        at = [os.path.split(name) for name in self.names]
        listed = {inside: _listed(self.folder / inside) for inside in {inside for inside, _ in at}}
        unlisted = [index for index, (inside, name) in enumerate(at) if name not in listed[inside]]
        return [index for index in unlisted if not (self.folder / self.names[index]).is_file()]


@dataclass(frozen=True, eq=False)
class ImageArray:
    """Pictures in memory: ``pixels`` uint8 ``[n, H, W]`` in gray or ``[n, H, W, 3]`` in colour."""

    pixels: np.ndarray

    def __len__(self) -> int:
        return len(self.pixels)

    def decode(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])


@dataclass(frozen=True)
class ImageTar:
    """Pictures in an archive that is not compressed: for each one its name, first byte and number of bytes.

    Of one that the archive does not hold, the first byte is -1.
    """

    path: Path
    members: Sequence[tuple[str, int, int]]

    @classmethod
    def of(cls, path: Path, names: Iterable[str]) -> ImageTar:
        """The members ``names``, whether they are there or not. Raises :class:`DataError` without the archive."""
        try:
            with tarfile.open(path, "r:") as archive:
                found = {member.name: (member.name, member.offset_data, member.size) for member in archive}
        except (OSError, tarfile.TarError) as error:
            raise DataError(f"{path}: cannot be read as a tar archive without compression: {error}") from error
        return cls(path, [found.get(name, (name, -1, 0)) for name in names])

    def __len__(self) -> int:
        return len(self.members)

    def decode(self, index: int) -> Image.Image:
        name = f"{self.path}, {self.name(index)}"
        try:
            return _decoded(self.open(index).read(), name)
        except FileNotFoundError as error:
            raise DataError(f"{name}: no such picture, though a table names it") from error

    def name(self, index: int) -> str:
        """What a picture is called, for errors."""
        return self.members[index][0]

    def open(self, index: int) -> BinaryIO:
        """The bytes of a picture. Raises ``OSError`` where they cannot be read."""
        name, start, size = self.members[index]
        if start < 0:
            raise FileNotFoundError(f"{self.path}: has no {name}")
        with self.path.open("rb") as archive:
            archive.seek(start)
            return io.BytesIO(archive.read(size))

    def absent(self) -> list[int]:
        """The pictures that the archive does not hold."""
        return [i for i, (_, start, _) in enumerate(self.members) if start < 0]


class ImageStore:
    """Pictures of one source as tensors. What was loaded last stays in memory, up to ``capacity`` bytes."""

    def __init__(self, source: ImageSource, capacity: int = 2**29) -> None:
        self.source = source
        self.capacity = capacity
        self._kept: OrderedDict[tuple[int, Size], Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.source)

    def __reduce__(self) -> tuple[object, ...]:
        """Another process begins with nothing in memory."""
        return ImageStore, (self.source, self.capacity)

    def load(self, indices: Sequence[int] | np.ndarray, size: Size) -> Tensor:
        """Pictures in RGB, uint8 ``[n, 3, H, W]``, resized bilinearly to ``size`` = (H, W) whatever their proportions.

        Raises :class:`DataError` for a picture that is missing or damaged.
        """
        import torch  # not above: places are known without it

        images = torch.empty(len(indices), 3, *size, dtype=torch.uint8)
        for place, index in enumerate(indices):
            images[place] = self._one(int(index), size)
        return images

    def _one(self, index: int, size: Size) -> Tensor:
        with self._lock:
            if (found := self._kept.get((index, size))) is not None:
                self._kept.move_to_end((index, size))
                return found
        import torch

        picture = self.source.decode(index).convert("RGB")
        if picture.size != (size[1], size[0]):
            picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        tensor = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
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


def _decoded(content: bytes, name: str) -> Image.Image:
    try:
        picture = Image.open(io.BytesIO(content))
        picture.load()
    except UNDECODABLE as error:
        raise DataError(
            f"{name}: no picture, or a damaged one: {error}; replace it, or take it out of the table that names it "
            "(vpr.skip-unreadable leaves out only what its first and last bytes give away)"
        ) from error
    return picture


def _listed(folder: Path) -> frozenset[str]:
    """The names of the files in a folder, none where it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()
