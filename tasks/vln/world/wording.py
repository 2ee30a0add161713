"""What there is to say about a path, and sentences that say it, as annotators with different habits write them."""

from collections.abc import Mapping, Sequence
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


ROOM_WORDS: Mapping[str, tuple[str, ...]] = {
    "office": ("office", "study"), "lounge": ("lounge", "sitting room"), "familyroom": ("family room", "den"),
    "entryway": ("entryway", "entrance", "foyer"), "dining_room": ("dining room", "dining area"),
    "living_room": ("living room", "living area"), "stairs": ("stairwell", "staircase"), "kitchen": ("kitchen",),
    "porch": ("patio", "porch"), "bathroom": ("bathroom", "restroom"), "bedroom": ("bedroom",),
    "hallway": ("hallway", "hall", "corridor"),
}  # fmt: skip
PHRASES: Mapping[str, tuple[str, ...]] = {
    "around": ("turn around", "turn around and go the other way", "make a u-turn"),
    "turn": ("turn {turn}", "make a {turn}", "take a {turn}", "go {turn}"),
    "slight": ("turn {turn}", "veer {turn}", "walk {turn}", "bear {turn}"),
    "turn at": ("turn {turn} at the {at}", "turn {turn} near the {at}", "at the {at} turn {turn}"),
    "straight": ("walk forward", "go straight", "walk straight ahead", "continue straight", "keep going"),
    "exit": ("exit the {out}", "leave the {out}", "walk out of the {out}", "go out of the {out}"),
    "exit into": (
        "exit the {out} into the {into}",
        "go from the {out} into the {into}",
        "leave the {out} and walk into the {into}",
    ),
    "enter": (
        "enter the {into}",
        "go into the {into}",
        "walk into the {into}",
        "go through the doorway into the {into}",
        "walk through the door to the {into}",
    ),
    "up": ("go up the stairs", "walk up the stairs", "take the stairs up", "climb the stairs", "head up the steps"),
    "down": ("go down the stairs", "walk down the stairs", "take the stairs down", "head down the steps"),
    "pass": (
        "walk past the {name} on your {side}",
        "pass the {name} on the {side}",
        "go past the {name} to your {side}",
    ),
    "stop at": (
        "stop next to the {at}",
        "stop near the {at}",
        "wait by the {at}",
        "stop at the {at}",
        "wait near the {at}",
    ),
    "stop in": (
        "stop in the {room}",
        "wait in the {room}",
        "stop once you are in the {room}",
        "stop inside the {room}",
    ),
    "stop door": (
        "stop in the doorway to the {to}",
        "wait at the door of the {to}",
        "stop at the entrance to the {to}",
    ),
    "stop landing": ("stop on the landing", "wait on the landing", "stop at the landing between the floors"),
    "join": (". ", ". ", ". ", " and ", ", then ", ". then "),
}
"""The ways to say each thing."""
DETAILS = ("rooms", "turns", "everything")
"""What an annotator writes down: rooms and stairs with the turns between, all turns, or objects on the way as well."""
HABIT = 0.5  # probability of the phrase that the house's annotators prefer
MENTIONED = 0.6  # probability that an annotator who writes down objects does so for one of them
SHORTENED = 0.3  # probability of a label's last word in place of all its words


@dataclass(frozen=True)
class Habits:
    """Which of the ways to say a thing the annotators of one house prefer, by the thing's name."""

    phrases: Mapping[str, str]
    rooms: Mapping[str, str]


def draw_habits(rng: np.random.Generator) -> Habits:
    """Draw a preference for every phrase and every room."""

    def choose(words: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        return {name: ways[int(rng.integers(len(ways)))] for name, ways in words.items()}

    return Habits(choose(PHRASES), choose(ROOM_WORDS))


class Annotator:
    """Writes one instruction; ``detail`` is one of :data:`DETAILS`."""

    def __init__(self, habits: Habits, detail: str, rng: np.random.Generator) -> None:
        self._habits, self._detail, self._rng = habits, detail, rng
        self._rooms = {room: self._choose(habits.rooms[room], ways) for room, ways in ROOM_WORDS.items()}

    def write(self, clauses: Sequence[Clause]) -> str:
        """The instruction: sentences that begin with a capital letter, and a space at the end as in the real files."""
        kept_clauses = [clause for clause in clauses if self._tells(clause)]
        phrases: list[str] = []
        for before, clause in zip((None, *kept_clauses), kept_clauses, strict=False):
            phrases += self._phrase(clause, before)
        text = phrases[0]
        for phrase in phrases[1:]:
            text += self._choose(self._habits.phrases["join"], PHRASES["join"]) + phrase
        sentences = [sentence[0].upper() + sentence[1:] for sentence in text.split(". ")]
        return ". ".join(sentences) + ". "

    def _tells(self, clause: Clause) -> bool:
        match clause:
            case Turning():
                return self._detail != "rooms" or not clause.is_slight
            case Passing():
                return self._detail == "everything" and self._rng.random() < MENTIONED
        return True

    def _phrase(self, clause: Clause, before: Clause | None) -> list[str]:
        straight = [self._say("straight")] if before is None or isinstance(before, Turning) else []
        match clause:
            case Turning():
                return [*(straight if before else []), self._turn(clause)]
            case Crossing():
                return [*(straight if self._detail == "everything" and not before else []), self._cross(clause)]
            case Climbing():
                return [self._say("up" if clause.up else "down")]
            case Passing():
                return [self._say("pass", name=self._label(clause.name), side=clause.side)]
            case Stopping():
                return [*straight, self._stop(clause)]

    def _turn(self, clause: Turning) -> str:
        if clause.turn == "around":
            return self._say("around")
        if clause.at is not None and self._detail != "rooms" and self._rng.random() < MENTIONED:
            return self._say("turn at", turn=clause.turn, at=self._label(clause.at))
        return self._say("slight" if clause.is_slight else "turn", turn=clause.turn)

    def _cross(self, clause: Crossing) -> str:
        out, into = self._rooms[clause.out_of], self._rooms[clause.into]
        if clause.into == "hallway":
            return self._say("exit", out=out)
        if clause.out_of == "hallway" or self._detail == "rooms":
            return self._say("enter", into=into)
        return self._say("exit into", out=out, into=into)

    def _stop(self, clause: Stopping) -> str:
        if clause.landing:
            return self._say("stop landing")
        if clause.to is not None:
            return self._say("stop door", to=self._rooms[clause.to])
        if clause.at is not None:
            return self._say("stop at", at=self._label(clause.at))
        return self._say("stop in", room=self._rooms[clause.room])

    def _say(self, thing: str, **words: str) -> str:
        return self._choose(self._habits.phrases[thing], PHRASES[thing]).format(**words)

    def _label(self, name: str) -> str:
        words = name.split("#")
        return words[-1] if self._rng.random() < SHORTENED else " ".join(words)

    def _choose(self, preferred: str, ways: Sequence[str]) -> str:
        return preferred if self._rng.random() < HABIT else ways[int(self._rng.integers(len(ways)))]
