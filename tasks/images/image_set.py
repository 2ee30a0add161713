"""Labelled images that are decoded when they are asked for, and those in Parquet files as the hub has them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fedapps.tasks.vision import decoded
from PIL import Image

from fedapps.base.errors import DataError, need

from .sources import Columns


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


#: What the library datasets calls the features in the metadata of a file.
_FEATURES = b"huggingface"


@dataclass(frozen=True, eq=False)
class ParquetColumns(Pictures):
    """The columns of one split.

    Attributes
    ----------
    paths : sequence of Path
        The files, in order.
    column : str
        The column of the images.
    labels : ndarray [n]
        Numbers of classes, or names.
    names : tuple of str
        The names of the classes by number, where the file has them.
    groups : ndarray of str [n], optional
    """

    paths: Sequence[Path]
    column: str
    labels: np.ndarray
    names: tuple[str, ...]
    groups: np.ndarray | None

    def __getitem__(self, index: int) -> Image.Image:
        cell = self._cells[index].as_py()
        content = cell.get("bytes") if isinstance(cell, dict) else cell
        location = f"{self.paths[0].parent}, {self.column} of image {index}"
        if not isinstance(content, bytes):
            raise DataError(f"{location}: no bytes of an image; expected them, or a structure with the field bytes")
        return decoded(content, location)

    @property
    def _cells(self) -> Any:
        if not hasattr(self, "_kept"):
            import pyarrow

            tables = [_read(path, [self.column]) for path in self.paths]
            object.__setattr__(self, "_kept", pyarrow.concat_tables(tables).column(self.column).combine_chunks())
        return self._kept  # type: ignore[attr-defined]


#: Names that columns of labels usually have.
_LABELS = frozenset(["label", "labels", "target", "targets", "class", "classes", "y"])


def refuse_other_labels(location: str, label: str, names: Iterable[str]) -> None:
    """Raise :class:`DataError` if beside the column or array ``label`` another one could be that of the labels."""
    if others := sorted(name for name in names if name != label and name.lower() in _LABELS):
        raise DataError(
            f"{location}: {label} and {', '.join(others)} could be the labels; name one of them in images.label-column"
        )


def read_parquet(paths: Sequence[Path], columns: Columns, *, label_named: bool = True) -> ParquetColumns:
    """Read the labels and the groups of a split; images are read with the first of them.

    Raises
    ------
    DataError
        A file is damaged, lacks a column, or has an image without a label; or unless ``label_named``, two columns could
        be the label.
    """
    need("pyarrow", "images", f"{paths[0]}")
    import pyarrow.parquet

    labels, groups = [], []
    names: tuple[str, ...] = ()
    for path in paths:
        try:
            schema = pyarrow.parquet.read_schema(path)
        except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:  # the last is of a column's name
            raise DataError(f"{path}: cannot be read as a Parquet file: {error}") from error
        wanted = {"image-column": columns.image, "label-column": columns.label}
        if columns.group in schema.names:
            wanted["group-column"] = columns.group
        for key, name in wanted.items():
            if name not in schema.names:
                raise DataError(
                    f"{path}: no column {name}; found {', '.join(schema.names)} (images.{key} names the column)"
                )
        if not label_named:
            refuse_other_labels(str(path), columns.label, schema.names)
        table = _read(path, [name for key, name in wanted.items() if key != "image-column"])
        label = table.column(columns.label)
        if label.null_count:
            raise DataError(f"{path}, {columns.label}: {label.null_count} images have no label; remove them")
        labels.append(label.to_numpy())
        names = names or _class_names(schema.metadata, columns.label)
        if "group-column" in wanted:
            groups.append(np.array([str(value) for value in table.column(columns.group).to_pylist()]))
    values = np.concatenate(labels)
    if values.dtype.kind not in "iuO":
        raise DataError(f"{paths[0]}, {columns.label}: type {values.dtype}; expected whole numbers or names of classes")
    return ParquetColumns(paths, columns.image, values, names, np.concatenate(groups) if groups else None)


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    """The names that the library datasets wrote for a column of labels; empty if there are none."""
    try:
        features = json.loads((metadata or {}).get(_FEATURES, b"{}"))["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (ValueError, KeyError, TypeError):
        return ()


def _read(path: Path, columns: list[str]) -> Any:
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_table(path, columns=columns)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as a Parquet file: {error}") from error
