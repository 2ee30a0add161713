"""Objects in the rooms of a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .catalogue import OBJECTS, Style, draw_contents, draw_name
from .plan import Door, Plan, Rect, Stairs, stairs_of
from .sight import Floats

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
        free = [_doorstep(door) for door in plan.doors_of(number)]
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
    width, depth, height = door.width, *OBJECTS["doorway"].size[1:]
    half = (width / 2, depth / 2) if door.along_x else (depth / 2, width / 2)
    rect = Rect(door.x - half[0], door.y - half[1], door.x + half[0], door.y + half[1])
    return Item("doorway", style.names["doorway"], door.rooms[0], rect, 0.0, height)


def _doorstep(door: Door) -> Rect:
    half = (door.width / 2, DOORSTEP) if door.along_x else (DOORSTEP, door.width / 2)
    return Rect(door.x - half[0], door.y - half[1], door.x + half[0], door.y + half[1])


def _steps(stairs: Stairs, plan: Plan, style: Style) -> list[Item]:
    """Two steps of each flight. Those of the upper flight belong to the upper floor and lie below it."""
    width, depth, height = OBJECTS["step"].size
    flights = ((stairs.lower, stairs.foot, stairs.landing), (stairs.upper, stairs.landing, stairs.top))
    items = []
    for room, start, stop in flights:
        ground = plan.rooms[room].floor * plan.storey
        for share in (1 / 3, 2 / 3):
            x, y, z = ((1 - share) * np.array(start) + share * np.array(stop)).tolist()
            rect = Rect(x - width / 2, y - depth / 2, x + width / 2, y + depth / 2)
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
            x, y = _inside(anchor.rect, 0.0, (min(width, anchor.rect.sides[0]), min(depth, anchor.rect.sides[1])), rng)
            rect = _about(x, y, min(width, anchor.rect.sides[0]), min(depth, anchor.rect.sides[1]))
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
    x, y = _inside(room, AISLE, (width, depth), rng)
    base = CEILING - height if support == "ceiling" else base
    return Item(kind, name, number, _about(x, y, width, depth), base, base + height)


def _about(x: float, y: float, width: float, depth: float) -> Rect:
    return Rect(x - width / 2, y - depth / 2, x + width / 2, y + depth / 2)


def _inside(rect: Rect, margin: float, size: tuple[float, float], rng: np.random.Generator) -> tuple[float, float]:
    """The centre of an object of ``size`` in ``rect`` and ``margin`` away from its sides, or else of ``rect``."""
    slack = [max(side - of - 2 * margin, 0.0) / 2 for side, of in zip(rect.sides, size, strict=True)]
    return (
        (rect.x0 + rect.x1) / 2 + rng.uniform(-slack[0], slack[0]),
        (rect.y0 + rect.y1) / 2 + rng.uniform(-slack[1], slack[1]),
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
