"""Labelled images that are decoded when they are asked for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image


class Pictures(ABC):
    """A numbered collection of images."""

    @abstractmethod
    def __getitem__(self, index: int) -> Image.Image:
        """Return one image in 8-bit RGB. Raise :class:`DataError` if it is damaged or not supported."""

    def require_readable(self, rows: np.ndarray) -> None:
        """Raise :class:`DataError` if some images are damaged, as far as this is seen without decoding them."""
        return


@dataclass(frozen=True, eq=False)
class ImageSet:
    """``n`` labelled images.

    Attributes
    ----------
    pictures : Pictures
    labels : ndarray int64 [n]
        Classes, counted from 0.
    groups : ndarray of str [n], optional
        The node of each image, where the data say it.
    """

    pictures: Pictures
    labels: np.ndarray
    groups: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def pixels(self, rows: np.ndarray, size: tuple[int, int, int]) -> np.ndarray:
        """Return images as uint8 ``[rows, channels, height, width]``, resized bilinearly to ``size`` (height, width,
        channels) regardless of aspect ratio.

        Raises
        ------
        DataError
            An image is damaged or not supported.
        """
        height, width, channels = size
        pixels = np.empty((len(rows), channels, height, width), dtype=np.uint8)
        for index, row in enumerate(rows.tolist()):
            pixels[index] = planes(self.pictures[row], size)
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
    if len(sets) == 1:
        return sets[0]
    groups = [images.groups for images in sets if images.groups is not None]
    return ImageSet(
        _Chained(sets),
        np.concatenate([images.labels for images in sets]),
        np.concatenate(groups) if len(groups) == len(sets) else None,
    )


@dataclass(frozen=True, eq=False)
class _Chained(Pictures):
    """The pictures of several sets, one after another."""

    sets: Sequence[ImageSet]

    def __getitem__(self, index: int) -> Image.Image:
        for images in self.sets:
            if index < len(images):
                return images.pictures[index]
            index -= len(images)
        raise IndexError(index)

    def require_readable(self, rows: np.ndarray) -> None:
        start = 0
        for images in self.sets:
            images.pictures.require_readable(rows[(rows >= start) & (rows < start + len(images))] - start)
            start += len(images)
