"""Labelled images that are decoded when they are asked for: files, arrays of archives, and cells of Parquet files."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.tasks.vision import decoded, problem_in, seems_whole
from PIL import Image

from fedapps.base.errors import DataError
from fedapps.base.tables import parquet_cells
from fedapps.base.text_files import arrays_in

_NAMED = 5  # damaged images that a message lists
_SAMPLED = 64  # one in this number of encoded images is decoded when they are checked


class Pictures(ABC):
    """A numbered collection of images."""

    @abstractmethod
    def __getitem__(self, index: int) -> Image.Image:
        """Return one image in 8-bit RGB. Raise :class:`DataError` if it is damaged or not supported."""

    def name_of(self, number: int, folder: Path) -> str:
        """What an image in ``folder`` is called however many others there are: its number, where images are added at
        the end.
        """
        return str(number)

    @abstractmethod
    def require_readable(self, numbers: Sequence[int]) -> None:
        """Raise :class:`DataError` if some images are damaged, as far as this is seen without decoding most of them."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """``n`` labelled images.

    Attributes
    ----------
    pictures : sequence of (Pictures, int)
        The collection and the number of each image.
    labels : ndarray int64 [n]
        Classes, counted from 0.
    groups : ndarray of str [n], optional
        The node of each image, where the data say it.
    """

    pictures: Sequence[tuple[Pictures, int]]
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Image.Image:
        """Return one image in 8-bit RGB. Raise :class:`DataError` if it is damaged or not supported."""
        pictures, number = self.pictures[index]
        return pictures[number]

    def at(self, rows: np.ndarray) -> "ImageSet":
        """Return some of the images."""
        groups = None if self.groups is None else self.groups[rows]
        return ImageSet([self.pictures[row] for row in rows.tolist()], self.labels[rows], groups)

    def require_readable(self) -> None:
        """Raise :class:`DataError` if images are damaged, as far as this is seen without decoding most of them."""
        numbers: dict[Pictures, list[int]] = {}
        for pictures, number in self.pictures:
            numbers.setdefault(pictures, []).append(number)
        for pictures, of_collection in numbers.items():
            pictures.require_readable(of_collection)

    def pixels(self, size: tuple[int, int, int]) -> np.ndarray:
        """Return the images as uint8 ``[n, channels, height, width]``, resized bilinearly to ``size`` (height, width,
        channels) regardless of aspect ratio.

        Raises
        ------
        DataError
            An image is damaged or not supported.
        """
        height, width, channels = size
        pixels = np.empty((len(self), channels, height, width), dtype=np.uint8)
        for index in range(len(self)):
            pixels[index] = planes(self[index], size)
        return pixels


def planes(image: Image.Image, size: tuple[int, int, int]) -> np.ndarray:
    """Return an image in 8-bit RGB as uint8 ``[channels, height, width]`` for ``size`` (height, width, channels)."""
    height, width, channels = size
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if channels == 1:
        return np.asarray(image.convert("L"))[None]
    return np.asarray(image).transpose(2, 0, 1)


def joined(sets: Sequence[ImageSet]) -> ImageSet:
    """Return the images of several sets, one after another."""
    groups = [images.groups for images in sets if images.groups is not None]
    return ImageSet(
        [picture for images in sets for picture in images.pictures],
        np.concatenate([images.labels for images in sets]),
        np.concatenate(groups) if len(groups) == len(sets) else None,
    )


@dataclass(frozen=True, eq=False)
class Files(Pictures):
    """Image files."""

    paths: Sequence[Path]

    def name_of(self, number: int, folder: Path) -> str:
        """The path of the file in ``folder``."""
        return str(self.paths[number]).removeprefix(f"{folder}{os.sep}")  # os.path.relpath takes 40 times as long

    def require_readable(self, numbers: Sequence[int]) -> None:
        Image.preinit()
        problems = []
        for path in (self.paths[number] for number in numbers):
            try:
                with path.open("rb") as file:
                    problem = problem_in(file)
            except OSError as error:
                problem = str(error.strerror)
            problems += [f"{path} ({problem})"] if problem else []
        if problems:
            more = f", and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
            raise DataError(
                f"{len(problems)} of {len(numbers)} images cannot be read: {', '.join(problems[:_NAMED])}{more}; "
                "replace or remove them"
            )

    def __getitem__(self, index: int) -> Image.Image:
        path = self.paths[index]
        try:
            return decoded(path.read_bytes(), str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, eq=False)
class ArrayImages(Pictures):
    """An array of images in an archive, read when the first image is asked for."""

    path: Path
    name: str
    count: int

    @cached_property
    def pixels(self) -> np.ndarray:
        """The images, uint8 ``[n, H, W]`` or ``[n, H, W, 3]``."""
        (array,) = (array for _, array in arrays_in(self.path, [self.name]))
        if len(array) != self.count:
            raise DataError(f"{self.path}: {len(array)} images and {self.count} labels; expected one label for each")
        if array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[3] not in (1, 3):
            array = array.transpose(0, 2, 3, 1)
        if array.ndim == 4 and array.shape[3] == 1:
            array = array[..., 0]
        location = f"{self.path}, {self.name}"
        if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] != 3):
            raise DataError(f"{location}: shape {list(array.shape)}; expected [n, H, W], [n, H, W, 3] or [n, 3, H, W]")
        if array.dtype.kind == "f" and len(array) and array.min() >= 0 and array.max() <= 1:
            array = np.rint(array * 255).astype(np.uint8)
        if array.dtype != np.uint8:
            raise DataError(f"{location}: pixels of type {array.dtype}; expected uint8, or floats from 0 to 1")
        return np.ascontiguousarray(array)

    def require_readable(self, numbers: Sequence[int]) -> None:
        len(self.pixels)  # which is read and checked

    def __getitem__(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index]).convert("RGB")


@dataclass(frozen=True, eq=False)
class ParquetImages(Pictures):
    """Encoded images in a column of Parquet files, read when the first image is asked for."""

    paths: Sequence[Path]
    column: str

    @cached_property
    def cells(self) -> Any:
        """The column, as an array of pyarrow."""
        import pyarrow

        tables = [parquet_cells(path, [self.column]) for path in self.paths]
        return pyarrow.concat_tables(tables).column(self.column).combine_chunks()

    def require_readable(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            if number % _SAMPLED == 0 or not seems_whole(self._content(number)):
                self[number]

    def __getitem__(self, index: int) -> Image.Image:
        return decoded(self._content(index), self._location(index))

    def _content(self, index: int) -> bytes:
        cell = self.cells[index].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        if not isinstance(content, bytes):
            raise DataError(
                f"{self._location(index)}: no bytes of an image; expected them, or a structure with the field bytes"
            )
        return content

    def _location(self, index: int) -> str:
        return f"{self.paths[0].parent}, {self.column} of image {index}"
