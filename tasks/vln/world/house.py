"""A whole house: plan, objects, viewpoints, what is seen from where, and paths through it.

Paths are sampled as in Room-to-Room (Anderson et al., CVPR 2018, Sec. 4.2): shortest paths between two viewpoints.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from fedapps.base.seeding import generator

from .catalogue import draw_style
from .furnishing import Item, Spot, connect, furnish, place_spots
from .plan import Bools, Floats, Plan, draw_plan, is_clear, walls_of

EYE = (1.4, 1.6)  # metres above the ground
MOVES = (4, 6)
"""The least and most moves of a path."""
LEAST_DISTANCE = 5.0  # metres


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

    Start and goal are at least 5 m apart along the shortest path, which has 4 to 6 moves, and headings are uniform.
    """
    distances, before = shortest_paths(house.cameras, house.unobstructed)
    moves = _count_moves(before)
    allowed = (moves >= MOVES[0]) & (moves <= MOVES[1]) & (distances >= LEAST_DISTANCE)
    pairs = rng.permutation(np.argwhere(allowed))[:count]
    headings = rng.uniform(0, 2 * np.pi, size=len(pairs))
    return [
        SampledPath(tuple(_trace(before[start], goal)), float(distances[start, goal]), heading)
        for (start, goal), heading in zip(pairs.tolist(), headings.tolist(), strict=True)
    ]


def shortest_paths(places: Floats, moves: Bools) -> tuple[Floats, NDArray[np.int32]]:
    """Distances along ``moves`` ``[N, N]`` and, for each start and goal, the viewpoint before the goal.

    ``places`` is ``[N, 3]`` in metres. What cannot be reached is infinitely far; without a viewpoint before it, -9999.
    """
    lengths = np.linalg.norm(places[:, None] - places, axis=-1)
    distances, before = dijkstra(csr_matrix(np.where(moves, lengths, 0.0)), return_predecessors=True)
    return distances, before


def _count_moves(before: NDArray[np.int32]) -> NDArray[np.int64]:
    """The moves of each shortest path, 0 where there is none; more than the most are not counted."""
    spot = np.broadcast_to(np.arange(len(before)), before.shape)
    moves = np.zeros(before.shape, np.int64)
    rows = np.arange(len(before))[:, None]
    for _ in range(MOVES[1] + 1):
        onwards = before[rows, spot] >= 0
        moves += onwards
        spot = np.where(onwards, before[rows, spot], spot)
    return moves


def _trace(before: NDArray[np.int32], goal: int) -> list[int]:
    path = [goal]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return path[::-1]
