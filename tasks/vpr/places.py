"""Images of places: where each was taken, in which sequence, and whether it is a query or belongs to the database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.spatial import cKDTree
from torch import Tensor

from fedapps.base.errors import DataError

from .images import ImageStore, Size


@dataclass(frozen=True, order=True)
class Track:
    """A sequence of images from one pass of the camera.

    All of its images are queries or all belong to the database, and all are of one ``city``. ``group`` is an optional
    label within the city, such as a floor or a stretch of a railway line.
    """

    city: str
    name: str
    query: bool
    continent: str = ""
    group: str = ""


@dataclass(frozen=True, eq=False)
class Places:
    """``n`` images, one per row.

    Attributes
    ----------
    store : ImageStore
        Loads the images.
    tracks : tuple of Track
        The sequences.
    image : ndarray [n]
        The number of each image in ``store``, int64.
    position : ndarray [n, 2]
        East and north in metres, float64. Cities may have different origins; use :attr:`position_apart` to compare
        positions in several cities.
    track : ndarray [n]
        The index of each image's sequence in ``tracks``, int64.
    frame : ndarray [n]
        The place of each image in its sequence, int64.
    heading : ndarray [n]
        The viewing direction in degrees clockwise from north, float64; NaN if unknown.
    """

    store: ImageStore
    tracks: tuple[Track, ...]
    image: np.ndarray
    position: np.ndarray
    track: np.ndarray
    frame: np.ndarray
    heading: np.ndarray

    def __len__(self) -> int:
        return len(self.image)

    @cached_property
    def is_query(self) -> np.ndarray:
        """Which rows are queries, bool ``[n]``; the others are the database."""
        is_query: np.ndarray = np.array([track.query for track in self.tracks], dtype=bool)[self.track]
        return is_query

    @property
    def queries(self) -> np.ndarray:
        """The rows of the queries."""
        return np.flatnonzero(self.is_query)

    @property
    def database(self) -> np.ndarray:
        """The rows of the database."""
        return np.flatnonzero(~self.is_query)

    @property
    def present(self) -> np.ndarray:
        """The indices of the sequences with at least one row, ascending."""
        return np.unique(self.track)

    @property
    def cities(self) -> tuple[str, ...]:
        """The names of the cities with at least one row, sorted."""
        return tuple(sorted({self.tracks[track].city for track in self.present}))

    def select(self, rows: np.ndarray) -> "Places":
        """Return some rows in the given order. ``tracks`` and the cached images are shared."""
        return replace(
            self,
            image=self.image[rows],
            position=self.position[rows],
            track=self.track[rows],
            frame=self.frame[rows],
            heading=self.heading[rows],
        )

    def of_city(self, *names: str) -> "Places":
        """Return the rows of some cities. Raise :class:`DataError` for a city without images."""
        if unknown := set(names) - set(self.cities):
            raise DataError(f"no images of {', '.join(sorted(unknown))}; available cities: {', '.join(self.cities)}")
        inside = np.array([track.city in names for track in self.tracks])
        return self.select(np.flatnonzero(inside[self.track]))

    def of_tracks(self, tracks: Iterable[int]) -> "Places":
        """Return the rows of some sequences, given by their indices in ``tracks``."""
        return self.select(np.flatnonzero(np.isin(self.track, list(tracks))))

    @cached_property
    def position_apart(self) -> np.ndarray:
        """``position`` with cities moved at least 1000 km apart, so that no distance between cities is small, ``[n,
        2]``.
        """
        moved = self.position.copy()
        west = 0.0
        for city in self.cities:
            inside = np.array([track.city == city for track in self.tracks])[self.track]
            east = self.position[inside, 0]
            moved[inside, 0] = east - east.min() + west
            west += float(np.ptp(east)) + 1e6
        return moved

    def queries_with_positive(self, radius: float) -> np.ndarray:
        """Return the rows of queries with a database image of the same city within ``radius`` metres (< 1000 km)."""
        if not len(self.database):
            return self.database
        nearest, _ = cKDTree(self.position_apart[self.database]).query(self.position_apart[self.queries])
        answerable: np.ndarray = self.queries[nearest <= radius]
        return answerable

    def load_images(self, rows: Sequence[int] | np.ndarray, size: Size) -> Tensor:
        """Load images in RGB, uint8 ``[len(rows), 3, H, W]``, resized to ``size`` = (H, W).

        Raises
        ------
        DataError
            An image is missing or damaged.
        """
        return self.store.load(self.image[np.asarray(rows, dtype=np.int64)], size)


def build_places(
    store: ImageStore,
    tracks: Sequence[Track],
    position: np.ndarray,
    frame: np.ndarray,
    heading: np.ndarray | None = None,
) -> Places:
    """Return the images of ``store`` in its order.

    Parameters
    ----------
    store : ImageStore
        The n images.
    tracks : sequence of Track
        The sequence of each image.
    position : ndarray [n, 2]
        Positions in metres.
    frame : ndarray [n]
        Places in the sequences.
    heading : ndarray [n], optional
        Viewing directions in degrees.

    Raises
    ------
    DataError
        A sequence has two groups, or a city two continents.
    """
    order = sorted(set(tracks))
    _check_labels(order)
    number = {track: index for index, track in enumerate(order)}
    return Places(
        store,
        tuple(order),
        image=np.arange(len(tracks)),
        position=np.asarray(position, dtype=np.float64),
        track=np.array([number[track] for track in tracks], dtype=np.int64),
        frame=np.asarray(frame, dtype=np.int64),
        heading=np.full(len(tracks), np.nan) if heading is None else np.asarray(heading, dtype=np.float64),
    )


def _check_labels(tracks: Sequence[Track]) -> None:
    groups: dict[tuple[str, str, bool], str] = {}
    continents: dict[str, str] = {}
    for track in tracks:
        group = groups.setdefault((track.city, track.name, track.query), track.group)
        if group != track.group:
            raise DataError(f"sequence {track.name} of {track.city} has the groups {group} and {track.group}")
        continent = continents.setdefault(track.city, track.continent)
        if continent != track.continent:
            raise DataError(f"city {track.city} has the continents {continent} and {track.continent}")
