"""Floor plans of houses, and what can be seen in them: lines of sight and the 36 views of a panorama.

Views are those of :mod:`fedapps.tasks.vln.connectivity`, pictures those of :mod:`fedapps.tasks.vln.features`. Objects
fill rectangles in them.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from fedapps.tasks.vln.connectivity import VIEWS
from fedapps.tasks.vln.features import FOCAL, HEIGHT, WIDTH
from numpy.typing import NDArray

from .catalogue import ROOM_AREAS, Style

LEAST_SIDE = 2.4  # metres, of a room
STAIR_WIDTH = 2.6
STAIR_DEPTH = 4.0  # metres, unless what would be left behind the stairs is no room
DOOR = 0.9
ARCHWAY = 1.6
CORNER = 0.15  # metres a door keeps from the ends of its wall
HUBS = {"hallway", "entryway"}
MOST_COST = 0.9  # of a door that is not needed to reach a room
OPEN = {"living_room", "dining_room", "kitchen", "familyroom", "lounge", "entryway", "hallway", "porch"}
UPSTAIRS = {"kitchen": 0.0, "living_room": 0.0, "dining_room": 0.1, "entryway": 0.0, "porch": 0.3, "bedroom": 2.0}
REPEATED = ("bedroom", "bathroom")
AGAIN = 0.15  # factor for another room of a kind that most houses have once
REQUIRED = ("living_room", "kitchen", "bedroom", "bathroom")
MARGIN = 0.7  # metres from the walls to where one stands
FLIGHT = 2.6  # metres on the ground from the foot to the landing


@dataclass(frozen=True)
class Rect:
    """A rectangle ``[x0, x1] x [y0, y1]`` in metres."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def sides(self) -> tuple[float, float]:
        """Its extent along x and y."""
        return self.x1 - self.x0, self.y1 - self.y0

    @property
    def area(self) -> float:
        """Its area in square metres."""
        return self.sides[0] * self.sides[1]


@dataclass(frozen=True)
class Room:
    """A room of one ``kind`` of :data:`~.catalogue.ROOM_LABELS` on a ``floor`` counted from 0."""

    kind: str
    floor: int
    rect: Rect


@dataclass(frozen=True)
class Door:
    """A gap of ``width`` metres, centred on (x, y), in the wall between two rooms, given by their places in the plan.

    ``along_x`` says whether the wall runs along x. A door has no leaf: it is always open.
    """

    rooms: tuple[int, int]
    x: float
    y: float
    along_x: bool
    width: float


@dataclass(frozen=True)
class Plan:
    """All rooms and doors of a house, whose floors are ``storey`` metres apart and have the same ``outline``."""

    rooms: tuple[Room, ...]
    doors: tuple[Door, ...]
    outline: Rect
    storey: float

    def doors_of(self, room: int) -> tuple[Door, ...]:
        """The doors of one room."""
        return tuple(door for door in self.doors if room in door.rooms)


def draw_plan(style: Style, floors: int, rng: np.random.Generator) -> Plan:
    """Draw a plan with ``floors`` floors, in which all rooms of a floor are connected by doors."""
    while True:
        outline, rooms = _draw_rooms(style, floors, rng)
        named = _assign_kinds(rooms, style, rng)
        doors, connected = _draw_doors(named, style, rng)
        if connected:
            return Plan(tuple(named), tuple(doors), outline, style.storey)


def _draw_rooms(style: Style, floors: int, rng: np.random.Generator) -> tuple[Rect, list[Room]]:
    """The outline and all rooms. Rooms other than hallways and stairs have no kind yet."""
    size = float(np.sqrt(style.area))
    width, depth = rng.uniform(2.6, 3.8) * size + 2.0, rng.uniform(2.1, 2.9) * size + 1.5
    hall = rng.uniform(1.4, 2.1)
    low = float(np.clip(rng.uniform(0.4, 0.6) * (depth - hall), LEAST_SIDE, depth - hall - LEAST_SIDE))
    start = rng.uniform(3.0, 4.5) if rng.random() < 0.5 else 0.0
    blocks = [Rect(start, low + hall, width, depth)]
    wells = []
    if floors > 1:
        stair = rng.uniform(start, width - STAIR_WIDTH)
        stair = start if stair - start < LEAST_SIDE else stair
        stair = width - STAIR_WIDTH if width - STAIR_WIDTH - stair < LEAST_SIDE else stair
        back = low - STAIR_DEPTH if low - STAIR_DEPTH >= LEAST_SIDE else 0.0
        wells = [Rect(stair, back, stair + STAIR_WIDTH, low)]
        blocks += [Rect(start, 0.0, stair, low), Rect(stair + STAIR_WIDTH, 0.0, width, low)]
        blocks += [Rect(stair, 0.0, stair + STAIR_WIDTH, back)]
    else:
        blocks += [Rect(start, 0.0, width, low)]
    blocks = [block for block in (*blocks, Rect(0.0, 0.0, start, depth)) if block.area > 0]
    rooms: list[Room] = []
    for floor in range(floors):
        rooms += [Room("hallway", floor, Rect(start, low, width, low + hall))]
        rooms += [Room("stairs", floor, well) for well in wells]
        rooms += [Room("", floor, part) for block in blocks for part in _split(block, style.area, rng)]
    return Rect(0.0, 0.0, width, depth), rooms


def _split(rect: Rect, area: float, rng: np.random.Generator) -> list[Rect]:
    """Cut a rectangle across its longer side until its parts are smaller than a random area about ``area``."""
    along_x = rect.sides[0] >= rect.sides[1]
    length = max(rect.sides)
    if length < 2 * LEAST_SIDE or rect.area < 1.4 * area * rng.uniform(0.6, 1.4):
        return [rect]
    cut = float(np.clip(rng.uniform(0.3, 0.7) * length, LEAST_SIDE, length - LEAST_SIDE))
    if along_x:
        parts = (Rect(rect.x0, rect.y0, rect.x0 + cut, rect.y1), Rect(rect.x0 + cut, rect.y0, rect.x1, rect.y1))
    else:
        parts = (Rect(rect.x0, rect.y0, rect.x1, rect.y0 + cut), Rect(rect.x0, rect.y0 + cut, rect.x1, rect.y1))
    return [final for part in parts for final in _split(part, area, rng)]


def _assign_kinds(rooms: list[Room], style: Style, rng: np.random.Generator) -> list[Room]:
    """Kinds that fit the rooms' areas and floors: first one of each required kind, then by the style's weights."""
    named = list(rooms)
    free = [number for number, room in enumerate(rooms) if not room.kind]
    weights = dict(style.rooms)

    def fit(kind: str, room: Room) -> float:
        off = np.log(room.rect.area / ROOM_AREAS[kind])
        return float(np.exp(-2 * off**2) * (UPSTAIRS.get(kind, 1.0) if room.floor else 1.0)) + 1e-6

    for kind in REQUIRED[: len(free)]:
        best = max(free, key=lambda number: fit(kind, rooms[number]))
        named[best] = Room(kind, rooms[best].floor, rooms[best].rect)
        free.remove(best)
        weights[kind] *= 1.0 if kind in REPEATED else AGAIN
    for number in free:
        chances = np.array([weights[kind] * fit(kind, rooms[number]) for kind in ROOM_AREAS])
        kind = list(ROOM_AREAS)[int(rng.choice(len(chances), p=chances / chances.sum()))]
        weights[kind] *= 1.0 if kind in REPEATED else AGAIN
        named[number] = Room(kind, rooms[number].floor, rooms[number].rect)
    return named


@dataclass(frozen=True)
class Wall:
    """The line that two rooms share: at ``at`` on one axis, from ``low`` to ``high`` on the other, in metres."""

    along_x: bool
    at: float
    low: float
    high: float


def shared_wall(first: Rect, second: Rect) -> Wall | None:
    """The wall between two rectangles that do not overlap; ``None`` where they do not touch."""
    low, high = max(first.y0, second.y0), min(first.y1, second.y1)
    if low < high and (first.x1 == second.x0 or first.x0 == second.x1):
        return Wall(False, first.x1 if first.x1 == second.x0 else first.x0, low, high)
    low, high = max(first.x0, second.x0), min(first.x1, second.x1)
    if low < high and (first.y1 == second.y0 or first.y0 == second.y1):
        return Wall(True, first.y1 if first.y1 == second.y0 else first.y0, low, high)
    return None


def _draw_doors(rooms: list[Room], style: Style, rng: np.random.Generator) -> tuple[list[Door], bool]:
    """A spanning tree of doors on each floor, likeliest first, and others with the style's probability.

    Also gives whether the doors connect all rooms of each floor.
    """
    pairs = []
    for second, room in enumerate(rooms):
        for first in range(second):
            wall = shared_wall(rooms[first].rect, room.rect) if rooms[first].floor == room.floor else None
            if wall is not None and wall.high - wall.low >= DOOR + 2 * CORNER:
                cost = _cost(rooms[first].kind, room.kind) + rng.uniform(0, 0.3)
                pairs.append((cost, first, second, wall))
    group = list(range(len(rooms)))
    doors = []
    for cost, first, second, wall in sorted(pairs, key=lambda pair: pair[:3]):
        if group[first] == group[second] and (cost > MOST_COST or rng.random() >= style.doors):
            continue
        group = [group[first] if of == group[second] else of for of in group]
        doors.append(_draw_door((first, second), {rooms[first].kind, rooms[second].kind}, wall, rng))
    floors = {room.floor for room in rooms}
    return doors, len(set(group)) == len(floors)


def _draw_door(rooms: tuple[int, int], kinds: set[str], wall: Wall, rng: np.random.Generator) -> Door:
    wide = "stairs" in kinds or (kinds <= OPEN and "hallway" not in kinds)
    width = min(ARCHWAY if wide else DOOR, wall.high - wall.low - 2 * CORNER)
    slack = (wall.high - wall.low - width) / 2 - CORNER
    middle = (wall.low + wall.high) / 2 + (0.0 if "stairs" in kinds else rng.uniform(-slack, slack))
    x, y = (middle, wall.at) if wall.along_x else (wall.at, middle)
    return Door(rooms, x, y, wall.along_x, width)


def _cost(first: str, second: str) -> float:
    """How unlikely a door between rooms of two kinds is."""
    kinds = {first, second}
    if "stairs" in kinds:
        return 0.0 if "hallway" in kinds else 9.0
    if kinds & HUBS:
        return 0.2
    if "bathroom" in kinds:
        return 0.4 if "bedroom" in kinds else 2.0
    return 0.4 if kinds <= OPEN else 1.5


@dataclass(frozen=True)
class Stairs:
    """The stairs from the floor of the room ``lower`` to that of ``upper``, given by their places in the plan.

    ``foot``, ``landing`` and ``top`` are (x, y, z) on the ground in metres.
    """

    lower: int
    upper: int
    foot: tuple[float, float, float]
    landing: tuple[float, float, float]
    top: tuple[float, float, float]


def stairs_of(plan: Plan) -> list[Stairs]:
    """All stairs of a house, from the lowest. They start and end at the side of the well that leads to the hallway."""
    wells = [number for number, room in enumerate(plan.rooms) if room.kind == "stairs"]
    return [_connect(plan, lower, upper) for lower, upper in pairwise(wells)]


def _connect(plan: Plan, lower: int, upper: int) -> Stairs:
    well: Rect = plan.rooms[lower].rect
    ground = plan.rooms[lower].floor * plan.storey
    quarter, front = well.sides[0] / 4, well.y1 - MARGIN
    return Stairs(
        lower,
        upper,
        (well.x0 + quarter, front, ground),
        (well.x0 + 2 * quarter, max(well.y0 + MARGIN, front - FLIGHT), ground + plan.storey / 2),
        (well.x1 - quarter, front, ground + plan.storey),
    )


Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NEAR = 0.05  # metres: what is closer to the camera's plane is cut off
EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b) in (1, 2, 4)])
"""The edges of a box whose corners are numbered by the bits x, y, z."""


def is_clear(start: Floats, end: Floats, walls: Floats) -> Bools:
    """Whether no wall touches the straight line from ``start`` to ``end``.

    ``start`` and ``end`` are ``[..., 2]`` and are broadcast against each other; ``walls`` is ``[W, 4]``: x0, y0, x1, y1
    of each wall. All in metres.
    """
    start, end = start[..., None, :], end[..., None, :]
    first, second = walls[:, :2], walls[:, 2:]
    across = _side(start, end, first) * _side(start, end, second)
    along = _side(first, second, start) * _side(first, second, end)
    return np.asarray(~((across <= 0) & (along <= 0)).any(axis=-1))


def _side(origin: Floats, to: Floats, point: Floats) -> Floats:
    """Positive where ``point`` is to the left of the line from ``origin`` to ``to``, 0 on it."""
    line, away = to - origin, point - origin
    return np.asarray(line[..., 0] * away[..., 1] - line[..., 1] * away[..., 0])


def walls_of(plan: Plan, floor: int) -> Floats:
    """The walls of one floor without the gaps of its doors, ``[W, 4]``; a wall between two rooms occurs twice."""
    walls: list[tuple[float, float, float, float]] = []
    for number, room in enumerate(plan.rooms):
        if room.floor != floor:
            continue
        rect = room.rect
        for along_x, at in ((True, rect.y0), (True, rect.y1), (False, rect.x0), (False, rect.x1)):
            low, high = (rect.x0, rect.x1) if along_x else (rect.y0, rect.y1)
            gaps = sorted(
                (middle - door.width / 2, middle + door.width / 2)
                for door in plan.doors_of(number)
                for middle in [door.x if along_x else door.y]
                if door.along_x == along_x and (door.y if along_x else door.x) == at
            )
            bounds = [low, *(bound for gap in gaps for bound in gap), high]
            for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
                walls.append((start, at, stop, at) if along_x else (at, start, at, stop))
    return np.array(walls).reshape(-1, 4)


def diagonals(rects: list[Rect]) -> Floats:
    """Two lines for each rectangle, ``[2R, 4]``: a straight way through it crosses at least one of them."""
    lines = [((r.x0, r.y0, r.x1, r.y1), (r.x0, r.y1, r.x1, r.y0)) for r in rects]
    return np.array(lines, dtype=float).reshape(-1, 4)


def view_axes() -> Floats:
    """Right, up and forward of each view, ``[36, 3, 3]``."""
    index = np.arange(VIEWS)
    heading, elevation = np.radians(30.0 * (index % 12)), np.radians(30.0 * (index // 12 - 1))
    sin_h, cos_h, sin_e, cos_e = np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)
    right = np.stack([cos_h, -sin_h, np.zeros(VIEWS)], axis=1)
    up = np.stack([-sin_h * sin_e, -cos_h * sin_e, cos_e], axis=1)
    forward = np.stack([sin_h * cos_e, cos_h * cos_e, sin_e], axis=1)
    return np.stack([right, up, forward], axis=1)


AXES = view_axes()


def boxes_in_views(corners: Floats) -> tuple[NDArray[np.int64], Bools]:
    """Where boxes appear in the views of a camera at the origin.

    ``corners`` ``[M, 8, 3]`` in metres, numbered by the bits x, y, z. Gives the rectangles ``[M, 36, 4]`` as whole
    pixels x, y, width, height, with the origin at the top left, and whether they lie in the picture ``[M, 36]``.
    A rectangle bounds what of the box is in front of the camera; nothing hides it.
    """
    local = np.einsum("mkd,qad->mqka", corners, AXES)
    first, second = local[:, :, EDGES[:, 0]], local[:, :, EDGES[:, 1]]
    span = second[..., 2:] - first[..., 2:]
    crosses = (first[..., 2:] < NEAR) != (second[..., 2:] < NEAR)
    share = np.where(crosses, (NEAR - first[..., 2:]) / np.where(crosses, span, 1.0), 0.0)
    cuts = first + share * (second - first)
    points = np.concatenate([local, cuts], axis=2)
    ahead = np.concatenate([local[..., 2] >= NEAR, crosses[..., 0]], axis=2)
    depth = np.where(ahead, points[..., 2], 1.0)
    x, y = WIDTH / 2 + FOCAL * points[..., 0] / depth, HEIGHT / 2 - FOCAL * points[..., 1] / depth

    def bounds(values: Floats, most: int) -> tuple[Floats, Floats]:
        low = np.where(ahead, values, np.inf).min(axis=-1)
        high = np.where(ahead, values, -np.inf).max(axis=-1)
        return np.floor(np.clip(low, 0, most)), np.ceil(np.clip(high, 0, most))

    (left, right), (top, bottom) = bounds(x, WIDTH), bounds(y, HEIGHT)
    rectangles = np.stack([left, top, right - left, bottom - top], axis=-1).astype(np.int64)
    return rectangles, (right > left) & (bottom > top)
