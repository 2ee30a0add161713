"""Images of places: where each was taken, in which sequence, and whether it is a query or belongs to the database.

Positions in degrees are projected to metres, and those that cannot be right are refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.spatial import cKDTree
from torch import Tensor

from fedapps.base.errors import DataError
from fedapps.base.tables import Table

from .images import ImageStore, Size

#: The mean radius of the Earth in metres.
EARTH_RADIUS = 6_371_008.8
#: The maximum width of a city in degrees (about 100 km).
WIDEST = 1.0
_FAR = "remove rows without a fix, or name the cities in the column city"


def projected(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    """Project degrees ``[n]`` to metres east and north of their median ``[n, 2]``, equirectangularly.

    Distances within a city are accurate to about one part in a thousand up to 60 degrees of latitude. Less than half of
    the positions may be wrong without an effect on the others.
    """
    east, north = _from_median(lon, lat)
    scale = np.cos(np.deg2rad(np.median(lat)))
    position: np.ndarray = EARTH_RADIUS * np.deg2rad(np.stack([east * scale, north], axis=1))
    return position


def _from_median(lon: np.ndarray, lat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Degrees east and north of the median, continuous across the date line."""
    turn = np.deg2rad(lon)
    middle = np.rad2deg(np.arctan2(np.median(np.sin(turn)), np.median(np.cos(turn))))
    east = (lon - middle + 180.0) % 360.0 - 180.0
    return east - np.median(east), lat - np.median(lat)


def refuse_wide(table: Table, lon: np.ndarray, lat: np.ndarray, rows: np.ndarray) -> None:
    """Raise :class:`DataError` if images of a city lie farther than :data:`WIDEST` from the median of its positions.

    Parameters
    ----------
    table : Table
        With the columns ``lon`` and ``lat``, for the message.
    lon, lat : ndarray [n]
        Degrees.
    rows : ndarray
        The rows of the city.
    """
    east, north = _from_median(lon[rows], lat[rows])
    apart = np.maximum(np.abs(east) * np.cos(np.deg2rad(np.median(lat[rows]))), np.abs(north))
    if len(far := rows[apart > WIDEST]):
        name = "lat" if abs(north[apart > WIDEST][0]) > WIDEST else "lon"
        raise table.fault(name, far, f"more than {WIDEST:g} degree (111 km) from the median of its city; {_FAR}")


def refuse_far(
    table: Table, columns: tuple[str, str], position: np.ndarray, advice: str, rows: np.ndarray | None = None
) -> None:
    """Raise :class:`DataError` if positions in metres are implausible.

    They are if they lie more than 1000 km from the median of their city, or at (0, 0) and more than 100 km from it, as
    those do that were not found.

    Parameters
    ----------
    table : Table
        The table, for the message.
    columns : tuple of str
        The columns of the positions east and north.
    position : ndarray [n, 2]
        Metres.
    advice : str
        What to write, for the message.
    rows : ndarray, optional
        The rows of the city; by default all.
    """
    rows = np.arange(len(position)) if rows is None else rows
    apart = np.abs(position[rows] - np.median(position[rows], axis=0)).max(axis=1)
    zero = (position[rows] == 0).all(axis=1)
    if len(far := rows[(apart > 1e6) | (zero & (apart > 1e5))]):
        raise table.fault(columns[0], far, f"more than 100 km from the median of its city; {advice}, and {_FAR}")


def in_range_of_degrees(places: "Places") -> bool:
    """Return whether all positions could be longitudes and latitudes. No real city lies near (0, 0)."""
    centres = [np.abs(places.of_city(city).position.mean(axis=0)).max() for city in places.cities]
    within = np.abs(places.position) <= (180.0, 90.0)
    return bool(within.all()) and min(centres, default=0.0) > WIDEST


def refuse_degrees(places: "Places", far: float, columns: str, advice: str) -> None:
    """Raise :class:`DataError` if positions are degrees: in the range of degrees, with every city less than one unit
    wide.
    Positions in metres pass. A map of metres as small as that has no image farther than ``far`` from a query, so
    nothing could be learned from it; if ``far`` is smaller still, it passes. Maps around an origin of (0, 0) and cities
    with a single position pass too.

    Parameters
    ----------
    places : Places
        The images.
    far : float
        Minimum distance in metres of a negative.
    columns : str
        The file and columns of the positions, for the message.
    advice : str
        What to do, for the message.
    """
    wide = [np.ptp(places.of_city(city).position, axis=0).max() for city in places.cities]
    if in_range_of_degrees(places) and 0 < max(wide) < min(WIDEST, far):
        (west, south), (east, north) = places.position.min(axis=0), places.position.max(axis=0)
        raise DataError(
            f"{columns}: values from {west:g} to {east:g} and from {south:g} to {north:g}, within {max(wide):.2g} in a "
            f"city, which looks like degrees; expected metres east and north: {advice}"
        )


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
    """

    store: ImageStore
    tracks: tuple[Track, ...]
    image: np.ndarray
    position: np.ndarray
    track: np.ndarray

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
        return replace(self, image=self.image[rows], position=self.position[rows], track=self.track[rows])

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


def build_places(store: ImageStore, tracks: Sequence[Track], position: np.ndarray) -> Places:
    """Return the images of ``store`` in its order.

    Parameters
    ----------
    store : ImageStore
        The n images.
    tracks : sequence of Track
        The sequence of each image.
    position : ndarray [n, 2]
        Positions in metres.

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
