"""The kinds of rooms and objects from which houses are made, and the style in which one house differs from others.

Object names are labels of REVERIE (Qi et al., CVPR 2020), with ``#`` between words. Object classes are those of
Matterport3D's mpcat40. Rooms have the 12 labels that are in use for Matterport3D's panoramas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from fedapps.tasks.vln.features import ROOMS

ROOM_LABELS: Mapping[str, int] = {room: number for number, room in enumerate(ROOMS, 1)}
"""Room kinds and their numbers in the files."""

Place = Literal["wall", "middle", "hung", "window", "ceiling", "beside", "on", "plan"]
"""Where an object is: on the floor with its back to a wall, on the floor away from the walls, on a wall, in an outer
wall, under the ceiling, on the floor beside another object, on top of it, or where the plan has it."""
BEDS = ("bed",)
SEATS = ("sofa", "armchair", "bed")
TABLES = ("dining table", "desk", "table", "counter", "island")
BEDSIDES = ("nightstand", "side table", "dresser", "table", "desk")
TOPS = ("table", "dining table", "coffee table", "cabinet", "dresser")
READING = ("desk", "coffee table", "nightstand")
CONTENTS: Mapping[str, Mapping[str, float]] = {
    "office": {"desk": 1.2, "office chair": 1.2, "monitor": 1.1, "shelf": 1.2, "printer": 0.4, "books": 0.8,
               "cabinet": 0.5, "picture": 1.0, "window": 1.2, "curtain": 0.6, "table lamp": 0.5, "trash can": 0.4,
               "plant": 0.4, "sofa": 0.2, "rug": 0.3, "light": 1.0},
    "lounge": {"sofa": 0.8, "armchair": 1.5, "pool table": 0.6, "table": 0.6, "side table": 0.6, "piano": 0.4,
               "picture": 1.5, "window": 1.2, "curtain": 0.7, "plant": 0.6, "statue": 0.4, "pillow": 1.0,
               "fireplace": 0.3, "rug": 0.4, "floor lamp": 0.5, "treadmill": 0.3, "light": 0.7},
    "familyroom": {"sofa": 1.2, "armchair": 1.0, "coffee table": 0.8, "tv": 0.9, "ottoman": 0.7, "pillow": 1.8,
                   "picture": 1.3, "plant": 0.7, "cabinet": 0.5, "window": 1.2, "curtain": 0.7, "books": 0.5,
                   "rug": 0.5, "piano": 0.2, "floor lamp": 0.5, "shelf": 0.4, "light": 0.7},
    "entryway": {"bench": 0.7, "table": 0.7, "mirror": 0.6, "plant": 0.7, "picture": 0.7, "vase": 0.6, "box": 0.4,
                 "statue": 0.3, "clock": 0.3, "chandelier": 0.4, "rug": 0.4, "window": 0.6},
    "dining_room": {"dining table": 1.2, "chair": 4.5, "chandelier": 0.6, "picture": 1.2, "cabinet": 0.7, "plant": 0.5,
                    "window": 1.1, "curtain": 0.6, "vase": 0.6, "mirror": 0.3, "rug": 0.3, "clock": 0.2, "column": 0.2},
    "living_room": {"sofa": 1.5, "armchair": 1.2, "coffee table": 1.0, "side table": 0.9, "fireplace": 0.6,
                    "pillow": 2.2, "table lamp": 0.7, "picture": 1.5, "window": 1.6, "curtain": 1.0, "plant": 0.8,
                    "tv": 0.4, "vase": 0.6, "shelf": 0.5, "rug": 0.6, "statue": 0.3, "piano": 0.2, "fan": 0.3,
                    "column": 0.2},
    "stairs": {"picture": 1.0, "railing": 1.0, "window": 0.5, "light": 0.4},
    "kitchen": {"counter": 1.5, "sink": 1.0, "oven": 0.9, "refrigerator": 1.0, "island": 0.6, "stool": 1.6,
                "kitchen cabinet": 1.8, "microwave": 0.6, "pot": 1.0, "window": 0.8, "trash can": 0.4, "table": 0.3,
                "chair": 0.8, "light": 0.9, "clock": 0.3},
    "porch": {"chair": 1.2, "armchair": 1.0, "table": 0.8, "plant": 1.8, "bench": 0.7, "column": 1.2, "window": 1.0,
              "pot": 0.4, "fan": 0.3},
    "bathroom": {"sink": 1.2, "toilet": 1.0, "mirror": 1.1, "towel": 1.6, "bathtub": 0.5, "shower": 0.6,
                 "toilet paper": 0.7, "cabinet": 0.4, "picture": 0.5, "window": 0.5, "trash can": 0.4,
                 "washing machine": 0.2, "light": 0.6, "rug": 0.2},
    "bedroom": {"bed": 1.1, "nightstand": 1.3, "pillow": 2.0, "dresser": 0.8, "wardrobe": 0.5, "closet": 0.3,
                "table lamp": 1.1, "picture": 1.6, "window": 1.3, "curtain": 1.0, "tv": 0.4, "mirror": 0.4,
                "armchair": 0.5, "desk": 0.3, "plant": 0.3, "ottoman": 0.3, "fan": 0.4, "rug": 0.4, "box": 0.3},
    "hallway": {"picture": 2.2, "light": 1.2, "plant": 0.6, "table": 0.4, "mirror": 0.3, "statue": 0.3, "bench": 0.3,
                "clock": 0.3, "column": 0.3, "cabinet": 0.3, "vase": 0.3},
}  # fmt: skip
"""The mean number of objects of each kind in a room of each kind, in an average house."""
DEFINING: Mapping[str, str] = {
    "office": "desk", "dining_room": "dining table", "living_room": "sofa", "familyroom": "sofa", "kitchen": "counter",
    "bathroom": "toilet", "bedroom": "bed",
}  # fmt: skip
"""The kind of object that every room of a kind has."""
ROOM_AREAS: Mapping[str, float] = {
    "office": 10.0, "lounge": 18.0, "familyroom": 19.0, "entryway": 7.0, "dining_room": 14.0, "living_room": 22.0,
    "kitchen": 12.0, "porch": 12.0, "bathroom": 6.0, "bedroom": 14.0,
}  # fmt: skip
"""The usual area in square metres of every kind of room that the plan does not fix."""
PREFERENCE = 0.85  # share of the objects of a kind that carry the name which the house prefers
SPREAD = 1.5  # shape of the gamma distribution of the factors: the smaller, the more houses differ


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object.

    ``names`` are its labels; a house prefers one of them. ``size`` is (width, depth, height) and ``base`` the height
    of its underside above the floor, in metres. An object that is ``beside`` or ``on`` another needs one of the kinds
    in ``anchors`` in its room.
    """

    names: tuple[str, ...]
    mpcat40: str
    size: tuple[float, float, float]
    place: Place
    base: float = 0.0
    anchors: tuple[str, ...] = ()


OBJECTS: Mapping[str, ObjectKind] = {
    "bed": ObjectKind(("bed",), "bed", (1.7, 2.0, 0.6), "wall"),
    "nightstand": ObjectKind(("nightstand",), "chest_of_drawers", (0.5, 0.45, 0.55), "beside", 0.0, BEDS),
    "dresser": ObjectKind(("dresser", "drawers", "chest#of#drawers"), "chest_of_drawers", (1.1, 0.5, 0.9), "wall"),
    "wardrobe": ObjectKind(("wardrobe",), "furniture", (1.4, 0.6, 2.0), "wall"),
    "closet": ObjectKind(("closet", "cupboard"), "cabinet", (1.2, 0.6, 2.1), "wall"),
    "cabinet": ObjectKind(("cabinet", "showcase"), "cabinet", (1.0, 0.45, 1.2), "wall"),
    "shelf": ObjectKind(("shelf", "bookshelf", "shelves"), "shelving", (1.0, 0.35, 1.8), "wall"),
    "sofa": ObjectKind(("couch", "sofa"), "sofa", (2.0, 0.9, 0.8), "wall"),
    "armchair": ObjectKind(("armchair", "sofa#chair", "recliner"), "chair", (0.85, 0.8, 0.9), "wall"),
    "ottoman": ObjectKind(("ottoman", "footstool"), "stool", (0.6, 0.5, 0.4), "beside", 0.0, SEATS),
    "coffee table": ObjectKind(("coffee#table", "round#table"), "table", (1.1, 0.6, 0.45), "middle"),
    "side table": ObjectKind(("side#table", "end#table"), "table", (0.5, 0.5, 0.55), "beside", 0.0, SEATS),
    "table": ObjectKind(("table", "small#table"), "table", (1.0, 0.6, 0.75), "wall"),
    "dining table": ObjectKind(("dining#table", "round#table", "table"), "table", (1.8, 1.0, 0.75), "middle"),
    "chair": ObjectKind(("chair", "dining#chair", "wooden#chair"), "chair", (0.45, 0.45, 0.9), "beside", 0.0, TABLES),
    "desk": ObjectKind(("desk", "computer#desk"), "table", (1.4, 0.7, 0.75), "wall"),
    "office chair": ObjectKind(("office#chair", "swivel#chair"), "chair", (0.6, 0.6, 1.0), "beside", 0.0, ("desk",)),
    "monitor": ObjectKind(("monitor", "computer#monitor"), "tv_monitor", (0.55, 0.15, 0.4), "on", 0.0, ("desk",)),
    "printer": ObjectKind(("printer",), "objects", (0.45, 0.4, 0.3), "on", 0.0, ("desk", "table", "cabinet")),
    "tv": ObjectKind(("tv",), "tv_monitor", (1.1, 0.1, 0.65), "hung", 1.0),
    "fireplace": ObjectKind(("fireplace",), "fireplace", (1.5, 0.5, 1.2), "wall"),
    "piano": ObjectKind(("piano",), "objects", (1.5, 0.7, 1.1), "wall"),
    "pool table": ObjectKind(("pool#table",), "table", (2.3, 1.3, 0.8), "middle"),
    "treadmill": ObjectKind(("treadmill", "exercise#machine"), "gym_equipment", (0.8, 1.7, 1.3), "wall"),
    "bench": ObjectKind(("bench", "seat"), "seating", (1.2, 0.4, 0.45), "wall"),
    "stool": ObjectKind(("stool",), "stool", (0.4, 0.4, 0.7), "beside", 0.0, ("island", "counter")),
    "kitchen cabinet": ObjectKind(("kitchen#cabinet", "cabinet"), "cabinet", (1.2, 0.35, 0.7), "hung", 1.45),
    "counter": ObjectKind(("kitchen#counter", "countertop", "counter"), "counter", (1.8, 0.6, 0.9), "wall"),
    "island": ObjectKind(("kitchen#island", "island"), "counter", (1.6, 0.8, 0.9), "middle"),
    "sink": ObjectKind(("sink", "washbasin"), "sink", (0.6, 0.5, 0.9), "wall"),
    "refrigerator": ObjectKind(("refrigerator", "fridge"), "appliances", (0.8, 0.7, 1.8), "wall"),
    "oven": ObjectKind(("oven", "stove"), "appliances", (0.65, 0.6, 0.9), "wall"),
    "microwave": ObjectKind(("microwave",), "appliances", (0.5, 0.35, 0.3), "on", 0.0, ("counter",)),
    "washing machine": ObjectKind(("washing#machine",), "appliances", (0.6, 0.6, 0.9), "wall"),
    "pot": ObjectKind(("pot", "plate"), "objects", (0.25, 0.25, 0.2), "on", 0.0, ("counter", "island", "dining table")),
    "toilet": ObjectKind(("toilet",), "toilet", (0.45, 0.65, 0.8), "wall"),
    "bathtub": ObjectKind(("bathtub",), "bathtub", (1.6, 0.75, 0.6), "wall"),
    "shower": ObjectKind(("shower", "shower#door"), "shower", (0.9, 0.9, 2.0), "wall"),
    "towel": ObjectKind(("towel", "towels"), "towel", (0.5, 0.08, 0.6), "hung", 1.0),
    "toilet paper": ObjectKind(("toilet#paper",), "objects", (0.15, 0.1, 0.15), "hung", 0.7),
    "mirror": ObjectKind(("mirror",), "mirror", (0.7, 0.05, 0.9), "hung", 1.1),
    "picture": ObjectKind(("picture", "painting", "photo", "art"), "picture", (0.7, 0.04, 0.55), "hung", 1.4),
    "clock": ObjectKind(("clock",), "objects", (0.35, 0.06, 0.35), "hung", 1.8),
    "window": ObjectKind(("window", "window#frame"), "window", (1.2, 0.1, 1.2), "window", 0.9),
    "curtain": ObjectKind(("curtain", "curtains"), "curtain", (0.6, 0.12, 2.1), "window", 0.15),
    "plant": ObjectKind(("plant", "potted#plant"), "plant", (0.45, 0.45, 1.0), "wall"),
    "statue": ObjectKind(("statue",), "objects", (0.4, 0.4, 1.3), "wall"),
    "box": ObjectKind(("box", "basket"), "objects", (0.5, 0.4, 0.4), "wall"),
    "trash can": ObjectKind(("trash#can", "trashcan"), "objects", (0.3, 0.3, 0.5), "wall"),
    "floor lamp": ObjectKind(("lamp", "floor#lamp"), "lighting", (0.35, 0.35, 1.5), "wall"),
    "table lamp": ObjectKind(("table#lamp", "lamp"), "lighting", (0.3, 0.3, 0.45), "on", 0.0, BEDSIDES),
    "light": ObjectKind(("light", "ceiling#light"), "lighting", (0.4, 0.4, 0.15), "ceiling"),
    "chandelier": ObjectKind(("chandelier",), "lighting", (0.7, 0.7, 0.5), "ceiling"),
    "fan": ObjectKind(("fan", "ceiling#fan"), "objects", (1.1, 1.1, 0.3), "ceiling"),
    "pillow": ObjectKind(("pillow", "cushion"), "cushion", (0.5, 0.35, 0.2), "on", 0.0, SEATS),
    "vase": ObjectKind(("vase", "decoration"), "objects", (0.2, 0.2, 0.35), "on", 0.0, TOPS),
    "books": ObjectKind(("books", "book"), "objects", (0.35, 0.25, 0.2), "on", 0.0, READING),
    "rug": ObjectKind(("rug", "carpet"), "floor", (1.8, 1.3, 0.02), "middle"),
    "column": ObjectKind(("column", "pillar"), "column", (0.35, 0.35, 2.6), "wall"),
    "step": ObjectKind(("stair", "step"), "stairs", (1.0, 0.3, 0.18), "plan"),
    "railing": ObjectKind(("railing", "staircase#railing"), "railing", (1.6, 0.08, 0.9), "wall"),
    "doorway": ObjectKind(("doorway",), "door", (0.9, 0.1, 2.05), "plan"),
}  # fmt: skip
"""Object kinds by the name under which the other modules know them."""


@dataclass(frozen=True)
class Style:
    """What one house has more of than another.

    ``rooms`` weighs the kinds of rooms; ``objects`` multiplies :data:`CONTENTS` for all
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
