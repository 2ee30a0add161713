"""Pictures out of files, archives and arrays, decoded when they are asked for and kept while there is room."""

import io
import tarfile
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from tasks.base import DataError

#: Height and width in pixels.
Size = tuple[int, int]


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
    """Pictures in an archive that is not compressed: for each one its name, first byte and number of bytes."""

    path: Path
    members: Sequence[tuple[str, int, int]]

    @classmethod
    def of(cls, path: Path, names: Iterable[str]) -> "ImageTar":
        """The members ``names``. Raises :class:`DataError` when the archive or one of them is not there."""
        try:
            with tarfile.open(path, "r:") as archive:
                found = {member.name: (member.name, member.offset_data, member.size) for member in archive}
        except (OSError, tarfile.TarError) as error:
            raise DataError(f"{path}: cannot be read as a tar archive without compression: {error}") from error
        wanted = list(names)
        if missing := [name for name in wanted if name not in found]:
            raise DataError(f"{path}: {len(missing)} of {len(wanted)} pictures are missing, the first is {missing[0]}")
        return cls(path, [found[name] for name in wanted])

    def __len__(self) -> int:
        return len(self.members)

    def decode(self, index: int) -> Image.Image:
        name, start, size = self.members[index]
        with self.path.open("rb") as archive:
            archive.seek(start)
            return _decoded(archive.read(size), f"{self.path}, {name}")


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
        images = torch.empty(len(indices), 3, *size, dtype=torch.uint8)
        for place, index in enumerate(indices):
            images[place] = self._one(int(index), size)
        return images

    def _one(self, index: int, size: Size) -> Tensor:
        with self._lock:
            if (found := self._kept.get((index, size))) is not None:
                self._kept.move_to_end((index, size))
                return found
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
    except (UnidentifiedImageError, OSError, SyntaxError) as error:  # SyntaxError: a broken PNG
        raise DataError(f"{name}: no picture, or a damaged one: {error}") from error
    return picture
