"""The poses of a camera during a drive."""

from dataclasses import dataclass

import numpy as np

from .noise import Floats

EASE = 5.0  # metres before and after a corner over which a car turns


@dataclass(frozen=True)
class Poses:
    """``place [T, 2]`` in metres (east, north) and ``heading [T]`` in radians clockwise from north."""

    place: Floats
    heading: Floats


def draw_poses(path: Floats, lane: float, spacing: float, rng: np.random.Generator) -> Poses:
    """Draw a drive along the corners ``path [K, 2]``, ``lane`` metres to the right, with a frame every ``spacing``
    metres.
    The car starts within one spacing of the beginning and drifts a little within its lane.
    """
    steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
    ends = np.concatenate(([0.0], np.cumsum(steps)))
    at = np.arange(rng.uniform(0, min(spacing, ends[-1])), ends[-1], spacing)
    at = np.clip(at + rng.normal(0, 0.05 * spacing, size=len(at)), 0, ends[-1])
    ahead, behind = (_along(path, ends, np.clip(at + ease, 0, ends[-1])) for ease in (EASE, -EASE))
    heading = np.arctan2(*(ahead - behind).T)
    sway = lane + rng.normal(0, 0.4) + 0.25 * np.sin(at / rng.uniform(8, 20) + rng.uniform(0, 2 * np.pi))
    right = np.stack((np.cos(heading), -np.sin(heading)), axis=1)
    return Poses(_along(path, ends, at) + sway[:, None] * right, heading + rng.normal(0, 0.02, size=len(at)))


def _along(path: Floats, ends: Floats, at: Floats) -> Floats:
    return np.stack([np.interp(at, ends, path[:, axis]) for axis in (0, 1)], axis=1)
