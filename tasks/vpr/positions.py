"""Positions in degrees and in metres: their projection, and those that cannot be right."""

from typing import TYPE_CHECKING

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.tables import Table

if TYPE_CHECKING:
    from .places import Places

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


def headings(table: Table, column: str) -> np.ndarray:
    """Return viewing directions in degrees, float64 ``[n]``, NaN for empty cells.

    Raise :class:`DataError` for a cell that is no number from -360 to 360.
    """
    values = table.numbers(column, missing=np.nan)
    if len(wrong := np.flatnonzero(np.abs(values) > 360)):
        raise table.fault(column, wrong, "expected degrees from -360 to 360, or an empty cell")
    return values


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
