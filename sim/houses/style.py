"""A house's own style: how its rooms and objects differ from those of other houses."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .catalogue import CONTENTS, DEFINING, OBJECTS, ROOM_AREAS

PREFERENCE = 0.85  # share of the objects of a kind that carry the name which the house prefers
SPREAD = 1.5  # shape of the gamma distribution of the factors: the smaller, the more houses differ


@dataclass(frozen=True)
class Style:
    """What one house has more of than another.

    ``rooms`` weighs the kinds of rooms; ``objects`` multiplies :data:`~fedapps.sim.houses.catalogue.CONTENTS` for all
    rooms; ``names`` is the preferred name of each kind of object. ``area`` is the mean area of a room in square metres,
    ``spacing`` the distance between viewpoints and ``storey`` the height of a floor, both in metres. ``doors`` is the
    probability of a door that is not needed to reach a room.
    """

    rooms: Mapping[str, float]
    objects: Mapping[str, float]
    names: Mapping[str, str]
    area: float
    spacing: float
    storey: float
    doors: float


def draw_style(rng: np.random.Generator) -> Style:
    """Draw a style. Factors are independent gamma variables with mean 1 and standard deviation 0.8."""
    return Style(
        rooms={kind: float(rng.gamma(SPREAD, 1 / SPREAD)) for kind in ROOM_AREAS},
        objects={kind: float(rng.gamma(SPREAD, 1 / SPREAD)) for kind in OBJECTS},
        names={name: kind.names[int(rng.integers(len(kind.names)))] for name, kind in OBJECTS.items()},
        area=rng.uniform(9.0, 17.0),
        spacing=rng.uniform(2.0, 2.7),
        storey=rng.uniform(2.7, 3.1),
        doors=rng.uniform(0.1, 0.6),
    )


def draw_contents(room: str, style: Style, rng: np.random.Generator) -> list[str]:
    """The kinds of the objects in a room of kind ``room``.

    A kind occurs a Poisson-distributed number of times, but at most once more than in an average house. What defines
    the room is never missing.
    """
    means = CONTENTS[room]
    counts = rng.poisson([mean * style.objects[kind] for kind, mean in means.items()])
    counts = np.minimum(counts, np.rint(list(means.values())).astype(int) + 1)
    counts = np.maximum(counts, [kind == DEFINING.get(room) for kind in means])
    return [kind for kind, count in zip(means, counts.tolist(), strict=True) for _ in range(count)]


def draw_name(kind: str, style: Style, rng: np.random.Generator) -> str:
    """A label for an object of ``kind``: usually the name that the house prefers."""
    names = OBJECTS[kind].names
    return style.names[kind] if rng.random() < PREFERENCE else names[int(rng.integers(len(names)))]
