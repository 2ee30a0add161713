"""Reads the scenes of SocNav1: a robot among people, and a participant's rating of its behaviour; and splits them.

Each participant has a file of JSON lines, as published [1]_: ``score`` (0-100; 100 disturbs nobody), ``identifier``,
``room`` (corners ``[x, y]``), ``humans`` and ``objects`` (``id, xPos, yPos, orientation``), ``links`` (``[id, id,
"interact"]``) and ``robot`` (``{"id": 0}``), in centimetres and degrees relative to the robot, which faces +y.
Interactions between two people are listed twice, once from each side; interactions with objects are listed once. All
lines or none have ``split``: train, validation or test.

.. [1] Manso, Nuñez, Calderita, Faria and Bachiller, SocNav1: A Dataset to Benchmark and Learn Social Navigation
   Conventions, Data 5(1):7, 2020, https://doi.org/10.3390/data5010007
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import nan, pi
from pathlib import Path
from typing import Any

from fedapps.base.errors import DataError
from fedapps.base.rows import json_lines
from fedapps.base.seeding import generator
from fedapps.base.text_files import found_in, refuse_several, shown

Point = tuple[float, float]
#: x and y in metres, orientation in half turns (-1 to 1).
Pose = tuple[float, float, float]

FIELDS = ("score", "identifier", "room", "humans", "objects", "links", "robot")
SPLITS = ("train", "validation", "test")
#: The limits of coordinates and of the longer side of a room, in centimetres. A room in metres is below the latter.
FARTHEST, SMALLEST_ROOM = 1e6, 50.0
_TURNS = 8  # orientations from which it can be told that they are not degrees
FEWEST = 4  # of 3 scenes, 2 would train, 1 would test and none would validate


@dataclass(frozen=True, slots=True)
class RatedScene:
    """One rated scene, with the robot at the origin.

    Attributes
    ----------
    identifier : str
        The identifier in the file.
    score : float
        The rating, 0 to 100; NaN if nobody rated the scene.
    humans, objects : tuple of Pose
        The poses of people and objects.
    links : tuple of (int, int)
        The interactions, each once, as pairs of node indices: 0 is the robot, then come humans and objects. The first
        of a pair is a human.
    room : tuple of Point
        The corners in order, in metres; the first is not repeated.
    split : str
        train, validation or test, if the file has it; otherwise empty, and the split is drawn.
    """

    identifier: str
    score: float
    humans: tuple[Pose, ...]
    objects: tuple[Pose, ...]
    links: tuple[tuple[int, int], ...]
    room: tuple[Point, ...]
    split: str = ""

    def mirrored(self) -> "RatedScene":
        """Return the scene with left and right exchanged. Its score is the same."""
        return replace(
            self,
            humans=tuple((-x, y, -turn) for x, y, turn in self.humans),
            objects=tuple((-x, y, -turn) for x, y, turn in self.objects),
            room=tuple((-x, y) for x, y in self.room),
        )

    def seen_from(self, x: float, y: float) -> "RatedScene":
        """Return the scene with the robot moved to ``(x, y)`` in metres, still facing +y."""
        return replace(
            self,
            humans=tuple((a - x, b - y, turn) for a, b, turn in self.humans),
            objects=tuple((a - x, b - y, turn) for a, b, turn in self.objects),
            room=tuple((a - x, b - y) for a, b in self.room),
        )


def participant_files(folder: Path) -> dict[str, Path]:
    """Return the files ``<participant>.json`` of ``folder`` or its ``raw_data`` (as published), by participant.

    Raise :class:`DataError` if both have files.
    """
    published, beside = found_in(folder, "raw_data/*.json"), found_in(folder, "*.json")
    readings = {"raw_data/*.json": bool(published), "*.json": bool(beside)}
    refuse_several(folder, readings, "every file <participant>.json is a participant, so keep them in one folder")
    return {path.stem: path for path in published or beside}


def read_participant(folder: Path, participant: str) -> tuple[RatedScene, ...]:
    """Read all scenes that a participant rated, in the order of the file.

    Raises
    ------
    DataError
        The participant has no file (the message lists the files found), or a line is malformed (the message names file,
        line, field, value and what is allowed).
    """
    files = participant_files(folder)
    if participant not in files:
        names = ", ".join(files) or "none"
        raise DataError(
            f"{folder}: no file {participant}.json of participant {participant!r}; found {names} (social.participants "
            "names the participants of each node)"
        )
    path = files[participant]
    return _read_file(path, path.stat().st_mtime_ns)


def read_scenes(path: Path) -> tuple[RatedScene, ...]:
    """Read the scenes of a file in the order of its lines; they need no ``score`` and no ``identifier``.

    Raises
    ------
    DataError
        The file cannot be read, a line is malformed, or orientations are in radians.
    """
    scenes = tuple(scene_of(values, f"{path}, line {line}") for line, values in json_lines(path))
    _refuse_radians(path, scenes)
    return scenes


def _refuse_radians(path: Path, scenes: Sequence[RatedScene]) -> None:
    turns = [abs(turn) for scene in scenes for _, _, turn in (*scene.humans, *scene.objects)]
    if len(turns) >= _TURNS and 0 < max(turns) <= 2 * pi / 180:
        raise DataError(f"{path}: no orientation is above 2 pi, as in radians; expected degrees")


def scene_of(values: Mapping[str, Any], location: str = "scene") -> RatedScene:
    """Return the scene of an object as a line of a file has it; it needs no ``score`` and no ``identifier``.

    Raises
    ------
    DataError
        It is malformed. The message begins with ``location``.
    """
    scene = _scene({"score": 0, "identifier": "", **values}, location)
    return scene if "score" in values else replace(scene, score=nan)


@lru_cache(maxsize=64)
def _read_file(path: Path, modified: int) -> tuple[RatedScene, ...]:
    scenes: list[RatedScene] = []
    lines: dict[str, int] = {}
    for line, values in json_lines(path):
        scene = _scene(values, f"{path}, line {line}")
        if (first := lines.setdefault(scene.identifier, line)) != line:
            raise DataError(
                f"{path}, line {line}: identifier {shown(scene.identifier)} occurs for the second time (first in line "
                f"{first}), so that a test scene could be a training scene; keep one of the two"
            )
        scenes.append(scene)
    unsplit = [scene for scene in scenes if not scene.split]
    if 0 < len(unsplit) < len(scenes):
        raise DataError(
            f"{path}, line {lines[unsplit[0].identifier]}: missing split; expected it in all lines or in none"
        )
    if len(scenes) >= FEWEST and 0 < max(scene.score for scene in scenes) <= 1:
        raise DataError(f"{path}: no score is above 1, as on a scale from 0 to 1; expected 0 (worst) to 100")
    _refuse_radians(path, scenes)
    return tuple(scenes)


def _scene(values: Mapping[str, Any], location: str) -> RatedScene:
    if missing := [name for name in FIELDS if name not in values]:
        raise DataError(f"{location}: missing {', '.join(missing)}; expected {', '.join(FIELDS)}")
    score = values["score"]
    if not _is_number(score) or not 0 <= score <= 100:
        raise DataError(f"{location}: score = {shown(score)}; expected a number from 0 to 100")
    nodes = {_id(values["robot"], f"{location}: robot"): 0}
    humans = tuple(_pose(human, nodes, f"{location}: humans") for human in _list(values, "humans", location))
    objects = tuple(_pose(thing, nodes, f"{location}: objects") for thing in _list(values, "objects", location))
    links = {_link(link, nodes, len(humans), location): None for link in _list(values, "links", location)}
    room = [_corner(point, location) for point in _list(values, "room", location)]
    if len(room) > 1 and room[0] == room[-1]:
        room.pop()
    if len(set(room)) < 3:
        raise DataError(f"{location}: room = {shown(values['room'])}; expected at least 3 different points")
    width = 100 * max(max(side) - min(side) for side in zip(*room, strict=True))
    if width < SMALLEST_ROOM:
        raise DataError(f"{location}: the room is {width:g} cm wide; expected centimetres, not metres")
    if not isinstance(values["identifier"], (str, int)):
        raise DataError(f"{location}: identifier = {shown(values['identifier'])}; expected a string")
    if (split := values.get("split", "")) not in ("", *SPLITS):
        raise DataError(f"{location}: split = {shown(split)}; expected {', '.join(SPLITS)}")
    return RatedScene(str(values["identifier"]), float(score), humans, objects, tuple(links), tuple(room), split)


def _list(values: Mapping[str, Any], name: str, location: str) -> list[Any]:
    members = values[name]
    if not isinstance(members, list):
        raise DataError(f"{location}: {name} = {shown(members)}; expected a list")
    return members


def _id(values: Any, location: str) -> int:
    number = values.get("id") if isinstance(values, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise DataError(f"{location}: {shown(values)}; expected an object whose id is a whole number")
    return number


def _pose(values: Any, nodes: dict[int, int], location: str) -> Pose:
    number = _id(values, location)
    if number in nodes:
        raise DataError(f"{location}: id = {number} twice; expected another than {', '.join(map(str, nodes))}")
    for name, unit in (("xPos", "centimetres"), ("yPos", "centimetres"), ("orientation", "degrees")):
        if not _is_number(values.get(name)):
            written = shown(values.get(name))
            raise DataError(
                f"{location}: id {number}: {name} = {written}; expected a number of {unit} within {FARTHEST:g}"
            )
    nodes[number] = len(nodes)
    turn = values["orientation"] / 180
    if abs(turn) > 1:
        turn = (turn + 1) % 2 - 1
    return values["xPos"] / 100, values["yPos"] / 100, turn


def _link(link: Any, nodes: Mapping[int, int], humans: int, location: str) -> tuple[int, int]:
    ends = link[:2] if isinstance(link, list) else []
    if len(ends) < 2 or ends[0] == ends[1] or any(type(end) is not int or not nodes.get(end) for end in ends):
        known = ", ".join(str(number) for number, node in nodes.items() if node) or "none"
        raise DataError(f"{location}: links: {shown(link)}; expected two different ids of humans or objects: {known}")
    first, second = sorted(nodes[end] for end in ends)
    if first > humans:
        raise DataError(f"{location}: links: {shown(link)} joins two objects; expected at least one human")
    return first, second


def _corner(point: Any, location: str) -> Point:
    if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
        raise DataError(f"{location}: room: {shown(point)}; expected [x, y], two numbers of centimetres")
    return point[0] / 100, point[1] / 100


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -FARTHEST <= value <= FARTHEST


def split_scenes(
    scenes: Sequence[RatedScene], participant: str, *, seed: int, train_fraction: float = 1.0, augment: bool = False
) -> Mapping[str, list[RatedScene]]:
    """Split the scenes of one participant.

    A split that the file gives holds. Otherwise, of n scenes, ⌊0.7 n⌋ are for training, half of the remaining ones
    (rounded down) for validation, and the others for testing. This gives Table 3 of Guerdan and Gunes, 2022,
    Appendix A. Participants rated partly the same scenes, so a test scene of one may be a training scene of another.

    Parameters
    ----------
    scenes : sequence of RatedScene
        The scenes in the order of the file.
    participant : str
        The participant's name, which keys the draw together with ``seed``.
    seed : int
        The seed.
    train_fraction : float
        The share of the training scenes to keep, in (0, 1]; at least one is kept. It does not change the other splits.
    augment : bool
        Whether to add the mirror image of every training scene.

    Raises
    ------
    DataError
        There are fewer than 4 scenes, or none whose split is train.
    """
    if len(scenes) < FEWEST:
        raise DataError(
            f"{participant}.json: participant {participant!r} rated {len(scenes)} scenes; expected at least {FEWEST}, "
            "for training, validation and test"
        )
    order = generator(seed, "social.split", participant).permutation(len(scenes))
    shuffled = [scenes[index] for index in order]
    if scenes[0].split:
        parts = {split: [scene for scene in shuffled if scene.split == split] for split in SPLITS}
        if not parts["train"]:
            raise DataError(f"{participant}.json: no scene of the split train; expected at least one")
    else:
        train = 7 * len(scenes) // 10
        validation = train + (len(scenes) - train) // 2
        cut = (shuffled[:train], shuffled[train:validation], shuffled[validation:])
        parts = dict(zip(SPLITS, cut, strict=True))
    parts["train"] = parts["train"][: max(1, round(train_fraction * len(parts["train"])))]
    if augment:
        parts["train"] += [scene.mirrored() for scene in parts["train"]]
    return parts
