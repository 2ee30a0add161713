"""Sentences for a path, as annotators with different habits write them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .description import Clause, Climbing, Crossing, Passing, Stopping, Turning

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
        chosen = [clause for clause in clauses if self._tells(clause)]
        phrases: list[str] = []
        for before, clause in zip((None, *chosen), chosen, strict=False):
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
