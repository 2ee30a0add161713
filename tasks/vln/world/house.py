"""A whole house: plan, objects, viewpoints, what is seen from where, and paths through it."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from fedapps.tasks.vln.connectivity import EDGES, SHORTEST, Graph, shortest_paths

from fedapps.base.seeding import generator

from .catalogue import draw_style
from .furnishing import Item, Spot, connect, furnish, place_spots
from .plan import Bools, Floats, Plan, draw_plan, is_clear, walls_of

EYE = (1.4, 1.6)  # metres above the ground


@dataclass(frozen=True)
class House:
    """A house named ``scan``.

    ``visible`` and ``unobstructed``, ``[N, N]``, say which viewpoints one sees and can move to from each;
    ``in_sight [N, M]`` which of the ``items`` no wall hides. ``ids`` are the names of viewpoints, ``heights [N]`` the
    camera's metres above the ground and ``yaws [N]`` the camera's heading in radians. The plan's +y has the heading
    ``angle`` in the world, in radians clockwise.
    """

    scan: str
    plan: Plan
    items: tuple[Item, ...]
    spots: tuple[Spot, ...]
    ids: tuple[str, ...]
    visible: Bools
    unobstructed: Bools
    in_sight: Bools
    heights: Floats
    yaws: Floats
    angle: float

    @cached_property
    def cameras(self) -> Floats:
        """Where the panoramas are taken, ``[N, 3]`` in metres, z up."""
        places = np.array([(spot.x, spot.y, spot.z) for spot in self.spots])
        places[:, 2] += self.heights
        return self.to_world(places)

    @cached_property
    def centres(self) -> Floats:
        """The middle of each object, ``[M, 3]`` in metres."""
        return np.asarray(self.corners.mean(axis=1))

    @cached_property
    def corners(self) -> Floats:
        """The corners of each object's box, ``[M, 8, 3]`` in metres."""
        corners = np.array([item.corners for item in self.items])
        floors = np.array([self.plan.rooms[item.room].floor for item in self.items])
        corners[..., 2] += self.plan.storey * floors[:, None]
        return self.to_world(corners)

    @property
    def graph(self) -> Graph:
        """The viewpoints and the moves between them."""
        return Graph(self.scan, self.ids, self.cameras, self.unobstructed, self.visible)

    @cached_property
    def labels(self) -> Counter[tuple[int, str]]:
        """How many objects of a room, given by its place in the plan, have a label."""
        return Counter((item.room, item.name) for item in self.items)

    def to_world(self, places: Floats) -> Floats:
        """Places ``[..., 3]`` of the plan in the world, whose origin is the middle of the lowest floor."""
        outline = self.plan.outline
        x, y = places[..., 0] - (outline.x0 + outline.x1) / 2, places[..., 1] - (outline.y0 + outline.y1) / 2
        cos, sin = np.cos(self.angle), np.sin(self.angle)
        return np.stack([cos * x + sin * y, -sin * x + cos * y, places[..., 2]], axis=-1)


def draw_house(scan: str, floors: int, seed: int) -> House:
    """Draw the house ``scan``. It depends on nothing but the arguments."""
    style = draw_style(generator(seed, "houses.style", scan))
    plan = draw_plan(style, floors, generator(seed, "houses.plan", scan))
    items = furnish(plan, style, generator(seed, "houses.objects", scan))
    rng = generator(seed, "houses.viewpoints", scan)
    spots = place_spots(plan, items, style.spacing, rng)
    unobstructed = connect(plan, items, spots)
    visible, in_sight = look_around(plan, items, spots)
    return House(
        scan,
        plan,
        tuple(items),
        tuple(spots),
        tuple(rng.bytes(16).hex() for _ in spots),
        visible | unobstructed,
        unobstructed,
        in_sight,
        rng.uniform(*EYE, size=len(spots)),
        rng.uniform(0, 2 * np.pi, size=len(spots)),
        rng.uniform(0, 2 * np.pi),
    )


def look_around(plan: Plan, items: list[Item], spots: list[Spot]) -> tuple[Bools, Bools]:
    """Which other spots ``[N, N]`` and which items ``[N, M]`` are on a straight line without walls, floor by floor."""
    places = np.array([(spot.x, spot.y) for spot in spots])
    middles = np.array([item.centre[:2] for item in items])
    visible = np.zeros((len(spots), len(spots)), bool)
    in_sight = np.zeros((len(spots), len(items)), bool)
    floors = [{plan.rooms[room].floor for room in spot.rooms} for spot in spots]
    for floor in sorted(set.union(*floors)):
        walls = walls_of(plan, floor)
        on_floor = np.array([index for index, of in enumerate(floors) if floor in of])
        items_there = np.array([index for index, item in enumerate(items) if plan.rooms[item.room].floor == floor])
        visible[np.ix_(on_floor, on_floor)] |= is_clear(places[on_floor, None], places[None, on_floor], walls)
        in_sight[np.ix_(on_floor, items_there)] = is_clear(places[on_floor, None], middles[None, items_there], walls)
    np.fill_diagonal(visible, False)
    return visible, in_sight


@dataclass(frozen=True)
class SampledPath:
    """Places of viewpoints in their house, from start to goal; the length and the start's heading.

    ``distance`` is in metres, ``heading`` in radians, clockwise from +y, in [0, 2 pi).
    """

    spots: tuple[int, ...]
    distance: float
    heading: float


def sample_paths(house: House, count: int, rng: np.random.Generator) -> list[SampledPath]:
    """At most ``count`` different paths: as many as the house has.

    They are sampled as in Room-to-Room (:data:`~fedapps.tasks.vln.connectivity.EDGES`), with uniform headings.
    """
    shortest = shortest_paths(house.graph)
    far = np.argwhere(shortest.distance >= SHORTEST).tolist()
    paths = [path for start, goal in far if EDGES[0] <= len(path := shortest.path(start, goal)) - 1 <= EDGES[1]]
    drawn = [paths[number] for number in rng.permutation(len(paths))[:count]]
    headings = rng.uniform(0, 2 * np.pi, size=len(drawn)).tolist()
    return [
        SampledPath(tuple(path), float(shortest.distance[path[0], path[-1]]), heading)
        for path, heading in zip(drawn, headings, strict=True)
    ]
