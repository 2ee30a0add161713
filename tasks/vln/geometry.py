"""Directions in a house: headings in radians clockwise from +y, elevations in radians above the horizon.

A panorama has 36 views: view q looks towards heading 30 (q % 12) degrees and elevation 30 (q // 12 - 1) degrees, as in
the simulator of Room-to-Room (Anderson et al., CVPR 2018, Section 3).
"""

import numpy as np

HEADINGS, ELEVATIONS = 12, 3
VIEWS = HEADINGS * ELEVATIONS
STEP = np.pi / 6  # radians between neighbouring views

VIEW_HEADINGS = (np.arange(VIEWS) % HEADINGS) * STEP
VIEW_ELEVATIONS = (np.arange(VIEWS) // HEADINGS - 1) * STEP


def directions(offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Heading in [0, 2π) and elevation in [-π/2, π/2] of vectors ``[..., 3]`` in metres, z up."""
    heading = np.arctan2(offsets[..., 0], offsets[..., 1]) % (2 * np.pi)
    elevation = np.arctan2(offsets[..., 2], np.hypot(offsets[..., 0], offsets[..., 1]))
    return heading, elevation


def unit_vectors(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """The vectors ``[..., 3]`` of length 1 in some directions: the inverse of :func:`directions`."""
    flat = np.cos(elevation)
    return np.stack([np.sin(heading) * flat, np.cos(heading) * flat, np.sin(elevation)], axis=-1)


def nearest_view(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """The view, 0 to 35, whose centre is nearest to a direction in heading and in elevation."""
    column = nearest_heading(heading)
    row = np.clip(np.rint(elevation / STEP), -1, 1).astype(np.int64) + 1
    view: np.ndarray = row * HEADINGS + column
    return view


def nearest_heading(heading: np.ndarray) -> np.ndarray:
    """The column of views, 0 to 11, that is nearest to a heading."""
    return np.rint(np.asarray(heading) / STEP).astype(np.int64) % HEADINGS


def turned(angle: np.ndarray) -> np.ndarray:
    """An angle in radians as the same one in [-π, π)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def angle_features(heading: np.ndarray, elevation: np.ndarray) -> np.ndarray:
    """Sine and cosine of heading and of elevation, ``[..., 4]`` (Tan et al., NAACL 2019, Section 3.1)."""
    return np.stack([np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)], axis=-1)
