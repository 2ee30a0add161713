"""Drives along the routes of a city: when, in which direction, and the poses of the camera."""

from dataclasses import dataclass

import numpy as np

from fedapps.base.seeding import generator

from .conditions import SEASONS, Conditions, draw_conditions
from .noise import Floats

YEARS = {"database": (2012, 2015), "query": (2016, 2019)}
EASE = 5.0  # metres before and after a corner over which a car turns


@dataclass(frozen=True)
class Drive:
    """One drive along a route. ``number`` distinguishes the drives of a route and ``side``."""

    side: str
    route: int
    number: int
    reverse: bool
    conditions: Conditions


def draw_drives(
    city: str, route: int, fewest: int, more: float, southern: bool, night: float, seed: int
) -> list[Drive]:
    """Draw the drives along a route for the database and for queries: ``fewest`` and on average ``more`` additional
    ones each.
    Queries are recorded later, in other seasons, and only in directions in which the database was recorded.
    """
    rng = generator(seed, "streets.drives", city, route)
    order = rng.permutation(len(SEASONS)).tolist()
    seasons = {"database": (SEASONS[order[0]], SEASONS[order[1]]), "query": (SEASONS[order[2]], SEASONS[order[3]])}
    drives: list[Drive] = []
    ways = np.array([False])
    for side in ("database", "query"):
        count = fewest + int(rng.poisson(more))
        reverse = rng.random(count) < 0.5 if side == "database" else rng.choice(ways, count)
        ways = reverse
        for number in range(count):
            conditions = draw_conditions(rng, YEARS[side], seasons[side], southern, night)
            drives.append(Drive(side, route, number, bool(reverse[number]), conditions))
    return drives


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
