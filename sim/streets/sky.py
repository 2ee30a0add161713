"""The sky, its clouds, and the hills at the horizon."""

import numpy as np

from .conditions import Light
from .noise import Floats, Ints

HILL = np.array([0.30, 0.38, 0.34], np.float32)


def paint(light: Light, hills: Floats, clouds: Floats, rise: Floats, bearing: Floats, column: Ints) -> Floats:
    """Return the colour ``[N, 3]`` of the sky at ``rise [N]`` (tangent of the elevation).

    Parameters
    ----------
    light : Light
        The light.
    hills : ndarray [K, 3]
        The city's horizon.
    clouds : ndarray [h, w]
        Cloud cover in [0, 1] around the place.
    rise : ndarray [N]
        Tangent of the elevation of each point.
    bearing : ndarray [W]
        Bearing of each column of the image, in radians from north.
    column : ndarray [N]
        The column of each point.
    """
    up = np.sqrt(np.minimum(np.maximum(rise / 0.9, 0), 1))[:, None]
    colour = light.horizon + (light.zenith - light.horizon) * up
    height, width = clouds.shape
    row = np.sqrt(np.minimum(np.maximum(rise / 1.2, 0), 0.999)) * height
    around = (bearing / (2 * np.pi) % 1.0 * width).astype(int) % width
    cover = np.clip((clouds[row.astype(int), around[column]] - 1 + light.clouds) * 4, 0, 1)
    colour = colour + (light.cloud - colour) * (0.85 * cover)[:, None]
    crest: Floats = 0.01 + (hills[:, 0] * (1 + np.sin(hills[:, 1] * bearing[:, None] + hills[:, 2]))).sum(axis=1)
    hazy = 0.45 * light.horizon + 0.55 * HILL * (light.ambient + 0.5 * light.sun)
    painted: Floats = np.where((rise < crest[column])[:, None], hazy, colour)
    return painted
