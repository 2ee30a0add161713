"""What there is to say about a path: turns, rooms, stairs, objects on the way and where to stop."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from .catalogue import OBJECTS
from .house import House, SampledPath

Turn = Literal["left", "right", "slightly left", "slightly right", "around"]
Side = Literal["left", "right"]

STRAIGHT, SLIGHT, SHARP = np.radians((35, 65, 140))  # a smaller change of heading is no turn, slight, or a turn
BESIDE = 2.0  # metres from an object one stands at or walks past
PASSING = (0.1, 0.9)  # share of a move during which one walks past an object
NOT_SAID = ("doorway", "step", "light", "toilet paper", "railing", "pot")


@dataclass(frozen=True)
class Turning:
    """A turn relative to the heading before it, perhaps ``at`` an object, given by its label."""

    turn: Turn
    at: str | None

    @property
    def is_slight(self) -> bool:
        """Whether it is less than a turn to the left or right."""
        return self.turn.startswith("slightly")


@dataclass(frozen=True)
class Crossing:
    """The step through a door out of a room of one kind into one of another."""

    out_of: str
    into: str


@dataclass(frozen=True)
class Climbing:
    """Stairs, up or down."""

    up: bool


@dataclass(frozen=True)
class Passing:
    """A move past an object, given by its label, on one ``side``."""

    name: str
    side: Side


@dataclass(frozen=True)
class Stopping:
    """The end: in a ``room`` or at the door from there ``to`` another, on a landing, or ``at`` an object."""

    room: str
    to: str | None
    landing: bool
    at: str | None


Clause = Turning | Crossing | Climbing | Passing | Stopping


def describe(house: House, path: SampledPath) -> list[Clause]:
    """All there is to say about ``path``, in its order; it ends with a :class:`Stopping`."""
    places, heading = house.cameras, path.heading
    clauses: list[Clause] = []
    room = edge_room(house, *path.spots[:2])
    for start, stop in pairwise(path.spots):
        before, room = room, edge_room(house, start, stop)
        out_of, into = house.plan.rooms[before].kind, house.plan.rooms[room].kind
        if before != room and (out_of, into) != ("stairs", "stairs"):
            clauses.append(Crossing(out_of, into))
        step = places[stop] - places[start]
        towards = float(np.arctan2(step[0], step[1]))
        rise = house.spots[stop].z - house.spots[start].z
        if rise and clauses and clauses[-1] == Climbing(rise > 0):
            heading = towards
            continue
        turn = turn_name(towards - heading)
        if turn is not None:
            clauses.append(Turning(turn, _beside(house, start, room)))
        passed = None if rise else _passed(house, start, stop, room)
        if rise:
            clauses.append(Climbing(rise > 0))
        elif passed is not None and passed.name not in {c.name for c in clauses if isinstance(c, Passing)}:
            clauses.append(passed)
        heading = towards
    return [*clauses, _stop(house, path.spots[-1], room)]


def _stop(house: House, goal: int, room: int) -> Stopping:
    """The end of a path that reaches its goal through ``room``."""
    kind = house.plan.rooms[room].kind
    others = [house.plan.rooms[number].kind for number in house.spots[goal].rooms if number != room]
    landing = others == ["stairs"] and kind == "stairs"
    return Stopping(kind, others[0] if others and not landing else None, landing, _beside(house, goal, room))


def edge_room(house: House, start: int, stop: int) -> int:
    """The room through which one moves between two viewpoints, by its place in the plan."""
    (room,) = set(house.spots[start].rooms) & set(house.spots[stop].rooms)
    return room


def turn_name(angle: float) -> Turn | None:
    """The name of a change of heading in radians, clockwise; ``None`` below 35 degrees, slight below 65."""
    angle = (angle + np.pi) % (2 * np.pi) - np.pi
    if abs(angle) < STRAIGHT:
        return None
    if abs(angle) >= SHARP:
        return "around"
    if abs(angle) < SLIGHT:
        return "slightly right" if angle > 0 else "slightly left"
    return "right" if angle > 0 else "left"


def _candidates(house: House, spot: int, room: int) -> list[int]:
    """The objects in a room that one sees and may mention."""
    return [
        number
        for number in np.flatnonzero(house.in_sight[spot]).tolist()
        if house.items[number].room == room and house.items[number].kind not in NOT_SAID
    ]


def _salience(house: House, number: int, distance: float) -> float:
    """How much an object catches the eye: large, near, and the only one of its name in the room."""
    item = house.items[number]
    width, _, height = OBJECTS[item.kind].size
    return float(np.sqrt(width * height)) / (0.5 + distance) / house.labels[item.room, item.name]


def _beside(house: House, spot: int, room: int) -> str | None:
    """The label of the most salient object of ``room`` within 2 m of a viewpoint, if any."""
    away = np.linalg.norm((house.centres - house.cameras[spot])[:, :2], axis=1)
    near = [number for number in _candidates(house, spot, room) if away[number] <= BESIDE]
    if not near:
        return None
    return house.items[max(near, key=lambda number: _salience(house, number, float(away[number])))].name


def _passed(house: House, start: int, stop: int, room: int) -> Passing | None:
    """The most salient object of ``room`` that one walks past between two viewpoints, at most 2 m away, if any."""
    step = (house.cameras[stop] - house.cameras[start])[:2]
    offsets = (house.centres - house.cameras[start])[:, :2]
    share = offsets @ step / (step @ step)
    across = (step[0] * offsets[:, 1] - step[1] * offsets[:, 0]) / np.linalg.norm(step)
    near = [
        number
        for number in _candidates(house, start, room)
        if PASSING[0] <= share[number] <= PASSING[1] and 0.3 <= abs(across[number]) <= BESIDE
    ]
    if not near:
        return None
    best = max(near, key=lambda number: _salience(house, number, abs(float(across[number]))))
    return Passing(house.items[best].name, "left" if across[best] > 0 else "right")
