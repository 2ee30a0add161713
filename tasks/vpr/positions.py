"""Detects positions in degrees where metres are expected."""

import numpy as np
from fedapps.tasks.profiles import DataError

from .places import Places

#: The maximum width of a city in degrees (about 100 km).
WIDEST = 1.0


def in_range_of_degrees(places: Places) -> bool:
    """Return whether all positions could be longitudes and latitudes. No real city lies near (0, 0)."""
    centres = [np.abs(places.of_city(city).position.mean(axis=0)).max() for city in places.cities]
    within = np.abs(places.position) <= (180.0, 90.0)
    return bool(within.all()) and min(centres, default=0.0) > WIDEST


def refuse_degrees(places: Places, far: float, columns: str, advice: str) -> None:
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
