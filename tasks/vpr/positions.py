"""Degrees where metres are expected."""

import numpy as np

from tasks.profiles import DataError

from .places import Places

#: A city is narrower than this in degrees (about 100 km).
WIDEST = 1.0


def in_range_of_degrees(places: Places) -> bool:
    """Whether all positions could be longitudes and latitudes; no city of the world lies about (0, 0)."""
    centres = [np.abs(places.of_city(city).position.mean(axis=0)).max() for city in places.cities]
    within = np.abs(places.position) <= (180.0, 90.0)
    return bool(within.all()) and min(centres, default=0.0) > WIDEST


def refuse_degrees(places: Places, far: float, columns: str, advice: str) -> None:
    """Raise :class:`DataError` where positions are degrees: in their range, and each city less than one unit wide.

    Maps in metres pass. One as small as that has no picture farther than ``far`` from a query, so that nothing could
    be learned from it anyway, unless ``far`` is smaller still: then it passes too. So do maps about an origin of
    their own, and cities that have one position only.
    """
    wide = [np.ptp(places.of_city(city).position, axis=0).max() for city in places.cities]
    if in_range_of_degrees(places) and 0 < max(wide) < min(WIDEST, far):
        (west, south), (east, north) = places.position.min(axis=0), places.position.max(axis=0)
        raise DataError(
            f"{columns}: all from {west:g} to {east:g} and from {south:g} to {north:g}, within {max(wide):.2g} in a "
            f"city, which looks like degrees; expected metres east and north: {advice}"
        )
