"""The objects in the rooms of a house, its viewpoints, and the moves between them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .catalogue import OBJECTS, Style, draw_contents, draw_name
from .plan import Bools, Door, Floats, Plan, Rect, Stairs, diagonals, is_clear, stairs_of

TRIES = 20
CEILING = 2.5  # metres
FLAT = 0.05  # metres: one walks over a lower object, such as a rug
DOORSTEP = 0.8  # metres on both sides of a door that stay free
AISLE = 0.8  # metres from the walls to an object in the middle of a room


@dataclass(frozen=True)
class Item:
    """An object of one ``kind`` with the label ``name``: an upright box that fills ``rect`` from ``low`` to ``high``.

    ``room`` is its room's place in the plan; heights are in metres above the floor of that room.
    """

    kind: str
    name: str
    room: int
    rect: Rect
    low: float
    high: float

    @property
    def centre(self) -> tuple[float, float, float]:
        """The middle of the box, in metres."""
        rect = self.rect
        return (rect.x0 + rect.x1) / 2, (rect.y0 + rect.y1) / 2, (self.low + self.high) / 2

    @property
    def corners(self) -> Floats:
        """The corners of the box, ``[8, 3]`` in metres."""
        xs, ys, zs = (self.rect.x0, self.rect.x1), (self.rect.y0, self.rect.y1), (self.low, self.high)
        return np.array([(x, y, z) for x in xs for y in ys for z in zs])

    @property
    def is_obstacle(self) -> bool:
        """Whether one has to walk around it."""
        return OBJECTS[self.kind].place in ("wall", "middle", "beside") and self.high > FLAT


def furnish(plan: Plan, style: Style, rng: np.random.Generator) -> list[Item]:
    """A doorway for every door, the steps of the stairs, and objects for all rooms.

    Objects do not overlap and leave the doors free. An object for which 20 random places are taken is left out.
    """
    items = [_doorway(door, style) for door in plan.doors]
    items += [step for stairs in stairs_of(plan) for step in _steps(stairs, plan, style)]
    for number, room in enumerate(plan.rooms):
        free = [_across(door, 2 * DOORSTEP) for door in plan.doors_of(number)]
        kinds = sorted(draw_contents(room.kind, style, rng), key=lambda kind: bool(OBJECTS[kind].anchors))
        placed: list[Item] = []
        for kind in kinds:
            name = draw_name(kind, style, rng)
            for _ in range(TRIES):
                item = _place(kind, name, number, plan, placed, rng)
                if item is not None and _fits(item, room.rect, placed, free):
                    placed.append(item)
                    break
        items += placed
    return items


def _doorway(door: Door, style: Style) -> Item:
    _, depth, height = OBJECTS["doorway"].size
    return Item("doorway", style.names["doorway"], door.rooms[0], _across(door, depth), 0.0, height)


def _across(door: Door, depth: float) -> Rect:
    """A door's width times ``depth`` metres, half of them on each side."""
    return _about(door.x, door.y, *((door.width, depth) if door.along_x else (depth, door.width)))


def _steps(stairs: Stairs, plan: Plan, style: Style) -> list[Item]:
    """Two steps of each flight. Those of the upper flight belong to the upper floor and lie below it."""
    width, depth, height = OBJECTS["step"].size
    flights = ((stairs.lower, stairs.foot, stairs.landing), (stairs.upper, stairs.landing, stairs.top))
    items = []
    for room, start, stop in flights:
        ground = plan.rooms[room].floor * plan.storey
        for share in (1 / 3, 2 / 3):
            x, y, z = ((1 - share) * np.array(start) + share * np.array(stop)).tolist()
            rect = _about(x, y, width, depth)
            items.append(Item("step", style.names["step"], room, rect, z - ground - height, z - ground))
    return items


def _place(
    kind: str, name: str, number: int, plan: Plan, placed: Sequence[Item], rng: np.random.Generator
) -> Item | None:
    """One random place for an object, free or not; ``None`` where what it needs beside it is missing."""
    (width, depth, height), support, base = OBJECTS[kind].size, OBJECTS[kind].place, OBJECTS[kind].base
    room = plan.rooms[number].rect
    if support in ("on", "beside"):
        anchors = [item for item in placed if item.kind in OBJECTS[kind].anchors]
        if not anchors:
            return None
        anchor = anchors[int(rng.integers(len(anchors)))]
        if support == "on":
            width, depth = min(width, anchor.rect.sides[0]), min(depth, anchor.rect.sides[1])
            rect = _inside(anchor.rect, 0.0, width, depth, rng)
            return Item(kind, name, number, rect, anchor.high, anchor.high + height)
        return Item(kind, name, number, _along(anchor.rect, width, -depth, int(rng.integers(4)), rng), 0.0, height)
    if support in ("wall", "hung", "window"):
        sides = [side for side in range(4) if support != "window" or _is_outer(room, plan.outline, side)]
        if not sides:
            return None
        rect = _along(room, width, depth, sides[int(rng.integers(len(sides)))], rng)
        return Item(kind, name, number, rect, base, base + height)
    if rng.random() < 0.5:
        width, depth = depth, width
    rect = _inside(room, AISLE, width, depth, rng)
    base = CEILING - height if support == "ceiling" else base
    return Item(kind, name, number, rect, base, base + height)


def _about(x: float, y: float, width: float, depth: float) -> Rect:
    return Rect(x - width / 2, y - depth / 2, x + width / 2, y + depth / 2)


def _inside(rect: Rect, margin: float, width: float, depth: float, rng: np.random.Generator) -> Rect:
    """A box in ``rect`` and ``margin`` away from its sides, or else about its centre."""
    x, y = (max(side - of - 2 * margin, 0.0) / 2 for side, of in zip(rect.sides, (width, depth), strict=True))
    return _about(
        (rect.x0 + rect.x1) / 2 + rng.uniform(-x, x), (rect.y0 + rect.y1) / 2 + rng.uniform(-y, y), width, depth
    )


def _along(rect: Rect, width: float, depth: float, side: int, rng: np.random.Generator) -> Rect:
    """A box along the inside of a side of ``rect``, or the outside where ``depth`` is negative.

    Sides are y0, y1, x0 and x1.
    """
    low, high = (rect.x0, rect.x1) if side < 2 else (rect.y0, rect.y1)
    start = rng.uniform(low, high - width) if high - low > width else (low + high - width) / 2
    edge = (rect.y0, rect.y1, rect.x0, rect.x1)[side]
    inner = edge + depth if side % 2 == 0 else edge - depth
    near, far = min(edge, inner), max(edge, inner)
    return Rect(start, near, start + width, far) if side < 2 else Rect(near, start, far, start + width)


def _is_outer(room: Rect, outline: Rect, side: int) -> bool:
    return (room.y0 == outline.y0, room.y1 == outline.y1, room.x0 == outline.x0, room.x1 == outline.x1)[side]


def _fits(item: Item, room: Rect, placed: Sequence[Item], free: Sequence[Rect]) -> bool:
    rect = item.rect
    if rect.x0 < room.x0 or rect.y0 < room.y0 or rect.x1 > room.x1 or rect.y1 > room.y1:
        return False
    if item.high - item.low <= FLAT:
        return True
    if item.low < OBJECTS["doorway"].size[2] and any(_overlap(rect, doorstep) for doorstep in free):
        return False
    return not any(
        _overlap(rect, other.rect) and item.low < other.high and other.low < item.high
        for other in placed
        if other.high - other.low > FLAT
    )


def _overlap(first: Rect, second: Rect) -> bool:
    return first.x0 < second.x1 and second.x0 < first.x1 and first.y0 < second.y1 and second.y0 < first.y1


REACH = 4.5  # metres: no longer move where a room can do without
DETOUR = 1.04  # a move is left out where a way over a third viewpoint is shorter than this many times its length
WALL_GAP = 0.4  # metres to the walls
ITEM_GAP = 0.25  # metres to what stands on the floor
APART = 1.3  # metres between two viewpoints
DARTS = 40


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
    darts = rng.uniform(low, high, size=(DARTS * count, 2))
    gaps = np.array([distance_to(rect, darts) for rect in obstacles]).reshape(len(obstacles), len(darts))
    gap = gaps.min(axis=0, initial=ITEM_GAP)
    spots: list[Floats] = []
    for dart in darts[gap >= ITEM_GAP]:
        others = np.vstack([taken, *spots])
        if len(spots) < count and (np.linalg.norm(others - dart, axis=1) >= APART).all():
            spots.append(dart)
    return np.array(spots or [darts[int(np.argmax(gap))]])


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
