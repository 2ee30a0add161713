"""Converts UTM coordinates in metres to longitude and latitude."""

import numpy as np

from .noise import Floats

AXIS, FLATTENING = 6378137.0, 1 / 298.257223563  # WGS 84
SCALE, EAST, SOUTH = 0.9996, 500_000.0, 10_000_000.0


def to_degrees(easting: Floats, northing: Floats, zone: int, southern: bool) -> tuple[Floats, Floats]:
    """Return longitude and latitude in degrees of positions in UTM ``zone`` (1 to 60).

    In the south, ``northing`` includes the false northing of 10,000 km. The result is accurate to a millimetre within
    the zone: Krüger's series in the third flattening n, up to its third power.
    """
    n = FLATTENING / (2 - FLATTENING)
    radius = SCALE * AXIS / (1 + n) * (1 + n**2 / 4 + n**4 / 64)
    up = (np.asarray(northing, np.float64) - SOUTH * southern) / radius
    across = (np.asarray(easting, np.float64) - EAST) / radius
    betas = (n / 2 - 2 * n**2 / 3 + 37 * n**3 / 96, n**2 / 48 + n**3 / 15, 17 * n**3 / 480)
    deltas = (2 * n - 2 * n**2 / 3 - 2 * n**3, 7 * n**2 / 3 - 8 * n**3 / 5, 56 * n**3 / 15)
    xi = up - sum(b * np.sin(2 * j * up) * np.cosh(2 * j * across) for j, b in enumerate(betas, 1))
    eta = across - sum(b * np.cos(2 * j * up) * np.sinh(2 * j * across) for j, b in enumerate(betas, 1))
    chi = np.arcsin(np.sin(xi) / np.cosh(eta))
    latitude = chi + sum(d * np.sin(2 * j * chi) for j, d in enumerate(deltas, 1))
    longitude = np.arctan2(np.sinh(eta), np.cos(xi))
    return np.degrees(longitude) + (6 * zone - 183), np.degrees(latitude)
