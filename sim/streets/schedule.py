"""The schedule of drives along the routes of a city: when, and in which direction."""

from dataclasses import dataclass

import numpy as np
from fedapps.sim.seeding import generator

from .conditions import SEASONS, Conditions, draw_conditions

YEARS = {"database": (2012, 2015), "query": (2016, 2019)}


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
