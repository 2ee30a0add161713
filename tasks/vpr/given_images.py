"""Images that somebody has in hand, with the positions that are known of them: files, a folder, a table, arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from fedapps.tasks.answers import finite_numbers
from fedapps.tasks.vision import ENDINGS, GivenImage, picture_of
from PIL import Image
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.rows import FORMATS
from fedapps.base.tables import read_table
from fedapps.base.text_files import COMPRESSIONS, found_in

from .datasets import read_images
from .images import ImageFiles, ImageSource, ImageStore
from .options import Options
from .places import EARTH_RADIUS
from .readers import DEGREES, OPTIONAL, ROLES, coordinates, swapped

#: The endings of the names of tables.
TABLES = tuple(form + compression for form in FORMATS for compression in COMPRESSIONS)


@dataclass(frozen=True, eq=False)
class GivenImages:
    """``n`` images of any sizes.

    Attributes
    ----------
    source : ImageSource
        Decodes them.
    rows : int64 ndarray [n]
        Their numbers in ``source``.
    names : tuple of str
    position : float64 ndarray [n, 2]
        East and north in metres, or longitude and latitude in degrees; NaN where unknown.
    degrees : bool
        Whether positions are degrees.
    cities : tuple of str
        Positions in different cities have different origins; all are "" if there is only one city.
    query : bool ndarray [n], optional
        Which of them are queries, where the data distinguish queries from a database.
    """

    source: ImageSource
    rows: np.ndarray
    names: tuple[str, ...]
    position: np.ndarray
    degrees: bool = False
    cities: tuple[str, ...] = ()
    query: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not self.cities:
            object.__setattr__(self, "cities", ("",) * len(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def store(self) -> ImageStore:
        """Loads the images, and keeps none of them."""
        return ImageStore(self.source, capacity=0)

    def of_role(self, *, query: bool) -> "GivenImages":
        """Return the queries, or the database, of images that have both; otherwise these images as they are."""
        roles = self.query
        return self if roles is None or roles.all() or not roles.any() else self.select(roles == query)

    def select(self, wanted: np.ndarray) -> "GivenImages":
        """Return some of the images; ``wanted`` are their places, ascending, or a mask."""
        places = np.arange(len(self))[wanted].tolist()
        return replace(
            self,
            rows=self.rows[places],
            names=tuple(self.names[index] for index in places),
            position=self.position[places],
            cities=tuple(self.cities[index] for index in places),
            query=None if self.query is None else self.query[places],
        )


@dataclass(frozen=True, eq=False)
class _InHand:
    """Images as an :class:`~fedapps.tasks.vpr.images.ImageSource`."""

    images: Sequence[GivenImage]

    def __len__(self) -> int:
        return len(self.images)

    def decode(self, index: int) -> Image.Image:
        return picture_of(self.images[index], f"image {index}")


def in_hand(images: Sequence[GivenImage] | np.ndarray | Tensor) -> GivenImages:
    """Return a sequence of images, or arrays of equal sizes ``[n, H, W, 3]`` or tensors ``[n, 3, H, W]``.

    Files are called by their paths and other images by their numbers. Nothing is decoded. Raise :class:`DataError` for
    an array of another shape.
    """
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim != 4:
        raise DataError(f"images of shape {list(images.shape)}; expected a list, [n, H, W, 3] or [n, 3, H, W]")
    image_list = list(images)
    count = len(image_list)
    names = (str(image if isinstance(image, (str, Path)) else index) for index, image in enumerate(image_list))
    return GivenImages(_InHand(image_list), np.arange(count), tuple(names), positions_of(None, count))


def positions_of(position: object, count: int, *, degrees: bool = False) -> np.ndarray:
    """Return positions as float64 ``[count, 2]``; NaN without any.

    Raises
    ------
    DataError
        The shape is another, or they are ``degrees`` and no longitude from -180 to 360 and latitude from -90 to 90.
    """
    if position is None:
        return np.full((count, 2), np.nan)
    array = finite_numbers(position, "positions", missing=True).astype(np.float64)
    if array.shape != (count, 2):
        raise DataError(f"positions of shape {list(array.shape)}; expected [{count}, 2], one (x, y) for each image")
    for column, (name, (least, most)) in enumerate(DEGREES.items() if degrees else ()):
        if len(wrong := np.flatnonzero((array[:, column] < least) | (array[:, column] > most))):
            advice = "are lon and lat swapped?" if swapped(*array.T) else "are they metres?"
            raise DataError(
                f"positions[{wrong[0]}, {column}] = {array[wrong[0], column]:g}, the {name} in degrees; expected "
                f"{least:g} to {most:g}; {advice}"
            )
    return array


def is_collection(path: Path) -> bool:
    """Whether a path is a folder or has the name of a table, and not of an image."""
    return path.is_dir() or path.name.lower().endswith(TABLES)


def read_images_of(path: Path, options: Options) -> GivenImages:
    """Read a table of images, or a folder.

    A table (``.csv``, ``.tsv``, ``.jsonl``) has the column ``path``, relative to its folder, and optionally ``x`` and
    ``y`` in metres or ``lon`` and ``lat`` in degrees, ``city`` and ``role`` ("query", "database"). A folder has such a
    table under the name ``vpr.table-file``, is one of the data sets that the task reads, or has image files without
    positions, which are sorted by name.

    Raises
    ------
    DataError
        There is no image, or the table is malformed.
    """
    if path.is_file():
        return _listed(path)
    if (path / options.table_file).is_file():
        return _listed(path / options.table_file)
    files = [file.name for file in found_in(path, "*") if file.suffix.lower() in ENDINGS] if path.is_dir() else []
    if files:
        return GivenImages(ImageFiles(path, files), np.arange(len(files)), tuple(files), positions_of(None, len(files)))
    places = read_images(path, options)
    source = places.store.source
    names = [getattr(source, "name", str)(index) for index in places.image.tolist()]
    cities = tuple(places.tracks[track].city for track in places.track.tolist())
    return GivenImages(source, places.image, tuple(names), places.position, False, cities, places.is_query)


def unread_tables(path: Path, options: Options) -> list[str]:
    """Return the names of the tables in a folder that :func:`read_images_of` does not read; none if it is a file."""
    if not path.is_dir():
        return []
    files = found_in(path, "*")
    return [file.name for file in files if file.name.lower().endswith(TABLES) and file.name != options.table_file]


def _listed(path: Path) -> GivenImages:
    table = read_table(path, ("path",), (*OPTIONAL, "role"))
    names = table.texts("path")
    position, degrees = positions_of(None, len(table)), False
    if {"x", "y", "lon", "lat"} & set(table.columns):
        position, degrees = coordinates(table)
    query = table.words("role", ROLES).astype(bool) if "role" in table else None
    cities = tuple(table.texts("city")) if "city" in table else ()
    source = ImageFiles(path.parent, names)
    return GivenImages(source, np.arange(len(table)), tuple(names), position, degrees, cities, query)


def metres_between(first: np.ndarray, second: np.ndarray, *, degrees: bool) -> np.ndarray:
    """Return the distances in metres ``[...]`` between positions ``[..., 2]``, which broadcast; NaN where one is.

    Positions in degrees (longitude, latitude) are on a sphere of the Earth's mean radius (the haversine formula).
    """
    if not degrees:
        apart: np.ndarray = np.linalg.norm(first - second, axis=-1)
        return apart
    (lon, lat), (other_lon, other_lat) = (np.moveaxis(np.deg2rad(each), -1, 0) for each in (first, second))
    half = np.sin((other_lat - lat) / 2) ** 2 + np.cos(lat) * np.cos(other_lat) * np.sin((other_lon - lon) / 2) ** 2
    metres: np.ndarray = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(half.clip(0, 1)))
    return metres
