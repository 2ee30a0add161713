"""Viewpoints of a house and the moves between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .furnishing import Item
from .plan import Plan, Rect, stairs_of
from .sight import Bools, Floats, diagonals, is_clear

REACH = 4.5  # metres: no longer move where a room can do without
DETOUR = 1.04  # a move is left out where a way over a third viewpoint is shorter than this many times its length
WALL_GAP = 0.4  # metres to the walls
ITEM_GAP = 0.25  # metres to what stands on the floor
APART = 1.3  # metres between two viewpoints
TRIES = 40


@dataclass(frozen=True)
class Spot:
    """Where one can stand: (x, y) and the height ``z`` of the ground there, in metres.

    ``rooms`` are places in the plan: one room, or the two that meet in a door or on a landing.
    """

    x: float
    y: float
    z: float
    rooms: tuple[int, ...]


def place_spots(plan: Plan, items: Sequence[Item], spacing: float, rng: np.random.Generator) -> list[Spot]:
    """A spot in every door, three for each stairs, and about one for every ``spacing`` metres square of a room.

    A hallway gets one for every ``spacing`` metres of its length. Every room has at least one besides those in its
    doors.
    """
    spots = []
    for door in plan.doors:
        ground = plan.rooms[door.rooms[0]].floor * plan.storey
        shift = rng.uniform(-0.15, 0.15)
        x, y = (door.x + shift, door.y) if door.along_x else (door.x, door.y + shift)
        spots.append(Spot(x, y, ground, door.rooms))
    for stairs in stairs_of(plan):
        spots.append(Spot(*stairs.foot, (stairs.lower,)))
        spots.append(Spot(*stairs.landing, (stairs.lower, stairs.upper)))
        spots.append(Spot(*stairs.top, (stairs.upper,)))
    for number, room in enumerate(plan.rooms):
        if room.kind != "stairs":
            wanted = max(room.rect.sides) / spacing if room.kind == "hallway" else room.rect.area / spacing**2
            taken = np.array([(spot.x, spot.y) for spot in spots if number in spot.rooms]).reshape(-1, 2)
            obstacles = [item.rect for item in items if item.room == number and item.is_obstacle]
            ground = room.floor * plan.storey
            for x, y in _scatter(room.rect, max(1, round(wanted)), obstacles, taken, rng).tolist():
                spots.append(Spot(x, y, ground, (number,)))
    return spots


def _scatter(room: Rect, count: int, obstacles: Sequence[Rect], taken: Floats, rng: np.random.Generator) -> Floats:
    """At most ``count`` places clear of obstacles and apart from those ``taken``; one in any case, ``[K, 2]``."""
    low, high = np.array([room.x0, room.y0]) + WALL_GAP, np.array([room.x1, room.y1]) - WALL_GAP
    darts = rng.uniform(low, high, size=(TRIES * count, 2))
    gaps = np.array([distance_to(rect, darts) for rect in obstacles]).reshape(len(obstacles), len(darts))
    gap = gaps.min(axis=0, initial=ITEM_GAP)
    chosen: list[Floats] = []
    for dart in darts[gap >= ITEM_GAP]:
        others = np.vstack([taken, *chosen])
        if len(chosen) < count and (np.linalg.norm(others - dart, axis=1) >= APART).all():
            chosen.append(dart)
    return np.array(chosen or [darts[int(np.argmax(gap))]])


def distance_to(rect: Rect, points: Floats) -> Floats:
    """Metres from ``points [..., 2]`` to a rectangle, 0 inside it."""
    low, high = np.array([rect.x0, rect.y0]), np.array([rect.x1, rect.y1])
    away: Floats = np.linalg.norm(np.maximum(np.maximum(low - points, points - high), 0.0), axis=-1)
    return away


def connect(plan: Plan, items: Sequence[Item], spots: Sequence[Spot]) -> Bools:
    """Which moves are possible, ``[N, N]``, symmetric: within a room, past what stands there, and on stairs.

    All spots are connected: where furniture cuts a room's spots off from one another, the shortest line between them
    is a move nevertheless. A move that passes close to a third spot is left out if one can move there and on.
    """
    places = np.array([(spot.x, spot.y, spot.z) for spot in spots])
    lengths = np.linalg.norm(places[:, None] - places, axis=-1)
    climbs = _climbs(plan, spots)
    lengths = np.where((places[:, None, 2] == places[:, 2]) | climbs, lengths, np.inf)
    moves = climbs.copy()
    for number in range(len(plan.rooms)):
        in_room = np.array([index for index, spot in enumerate(spots) if number in spot.rooms])
        obstacles = [item.rect for item in items if item.room == number and item.is_obstacle]
        local = lengths[np.ix_(in_room, in_room)]
        open_ = is_clear(places[in_room, None, :2], places[None, in_room, :2], diagonals(obstacles)) & (local <= REACH)
        moves[np.ix_(in_room, in_room)] |= _join(open_, local) & ~np.eye(len(in_room), dtype=bool)
    return _thin(moves, lengths)


def _climbs(plan: Plan, spots: Sequence[Spot]) -> Bools:
    """The moves on stairs, ``[N, N]``: between the landing of each and its foot and top."""
    number = {(spot.x, spot.y, spot.z): index for index, spot in enumerate(spots)}
    climbs = np.zeros((len(spots), len(spots)), bool)
    for stairs in stairs_of(plan):
        landing = number[stairs.landing]
        for end in (number[stairs.foot], number[stairs.top]):
            climbs[landing, end] = climbs[end, landing] = True
    return climbs


def _join(moves: Bools, lengths: Floats) -> Bools:
    """``moves`` and, for each part cut off, the shortest that connects it."""
    joined, group = moves.copy(), np.arange(len(moves))
    pairs = np.argwhere(np.triu(np.ones_like(moves), 1))
    order = np.lexsort((lengths[tuple(pairs.T)], ~moves[tuple(pairs.T)]))
    for first, second in pairs[order].tolist():
        if group[first] != group[second]:
            group[group == group[second]] = group[first]
            joined[first, second] = joined[second, first] = True
    return joined


def _thin(moves: Bools, lengths: Floats) -> Bools:
    """``moves``, from the longest, without those that two shorter moves replace."""
    kept = moves.copy()
    pairs = np.argwhere(np.triu(moves))
    for first, second in pairs[np.argsort(-lengths[tuple(pairs.T)], kind="stable")].tolist():
        length = lengths[first, second]
        over = kept[first] & kept[second] & (lengths[first] < length) & (lengths[second] < length)
        if (lengths[first] + lengths[second])[over].min(initial=np.inf) < DETOUR * length:
            kept[first, second] = kept[second, first] = False
    return kept
