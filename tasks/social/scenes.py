"""Reads the scenes of SocNav1: a robot among people, and how well a participant thought it behaved.

One file of JSON lines per participant, as published [1]_: ``score`` (0-100, 100 disturbs nobody), ``identifier``,
``room`` (corners ``[x, y]``), ``humans`` and ``objects`` (``id, xPos, yPos, orientation``), ``links``
(``[id, id, "interact"]``) and ``robot`` (``{"id": 0}``), in centimetres and degrees around the robot, which looks
along +y. Every interaction of two people is listed twice, once from each side, an interaction with an object once.

.. [1] Manso, Nuñez, Calderita, Faria and Bachiller, SocNav1: A Dataset to Benchmark and Learn Social Navigation
   Conventions, Data 5(1):7, 2020, https://doi.org/10.3390/data5010007
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tasks.profiles import DataError

Point = tuple[float, float]
#: x and y in metres, orientation in half turns, -1 to 1.
Pose = tuple[float, float, float]

FIELDS = ("score", "identifier", "room", "humans", "objects", "links", "robot")


@dataclass(frozen=True, slots=True)
class Scene:
    """One rated scene, the robot at the origin.

    ``score`` is 0 to 100. ``links`` are the interactions, each once, as pairs of nodes: 0 is the robot, then come
    the humans, then the objects; the first of a pair is a human. ``room`` holds the corners in order, in metres, the
    first not repeated.
    """

    identifier: str
    score: float
    humans: tuple[Pose, ...]
    objects: tuple[Pose, ...]
    links: tuple[tuple[int, int], ...]
    room: tuple[Point, ...]

    def mirrored(self) -> "Scene":
        """The scene with left and right exchanged, which a rater should find as good."""
        return replace(
            self,
            humans=tuple((-x, y, -turn) for x, y, turn in self.humans),
            objects=tuple((-x, y, -turn) for x, y, turn in self.objects),
            room=tuple((-x, y) for x, y in self.room),
        )

    def seen_from(self, x: float, y: float) -> "Scene":
        """The scene with the robot moved to ``(x, y)`` in metres, still looking along +y."""
        return replace(
            self,
            humans=tuple((a - x, b - y, turn) for a, b, turn in self.humans),
            objects=tuple((a - x, b - y, turn) for a, b, turn in self.objects),
            room=tuple((a - x, b - y) for a, b in self.room),
        )


def participant_files(folder: Path) -> dict[str, Path]:
    """``<participant>.json`` in ``folder`` or its ``raw_data`` (as published), by participant and in their order."""
    found = [*folder.glob("raw_data/*.json"), *folder.glob("*.json")]
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def read_participant(folder: Path, participant: str) -> tuple[Scene, ...]:
    """All scenes that ``participant`` rated, in the order of the file.

    Raises :class:`DataError` when there is no such file (naming those there are) or a line is malformed (naming
    file, line, field, value and what is allowed).
    """
    files = participant_files(folder)
    if participant not in files:
        found = ", ".join(files) or "none"
        raise DataError(f"{folder}: no file {participant}.json of participant {participant!r}; found {found}")
    path = files[participant]
    return _read_file(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read_file(path: Path, mtime: int) -> tuple[Scene, ...]:
    scenes = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    scenes.append(_scene(line, f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: expected a readable file of JSON lines: {error}") from error
    return tuple(scenes)


def _scene(line: str, place: str) -> Scene:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: {line.strip()[:40]!r} is not JSON ({error}); expected one scene per line") from error
    if not isinstance(values, dict):
        raise DataError(f"{place}: {line.strip()[:40]!r}; expected a JSON object with {', '.join(FIELDS)}")
    if missing := [name for name in FIELDS if name not in values]:
        raise DataError(f"{place}: missing {', '.join(missing)}; expected {', '.join(FIELDS)}")
    score = values["score"]
    if not _is_number(score) or not 0 <= score <= 100:
        raise DataError(f"{place}: score = {score!r}; expected a number from 0 to 100")
    nodes = {_id(values["robot"], f"{place}: robot"): 0}
    humans = tuple(_pose(human, nodes, f"{place}: humans") for human in _list(values, "humans", place))
    objects = tuple(_pose(thing, nodes, f"{place}: objects") for thing in _list(values, "objects", place))
    links = {_link(link, nodes, len(humans), place): None for link in _list(values, "links", place)}
    room = [_corner(point, place) for point in _list(values, "room", place)]
    if len(room) > 1 and room[0] == room[-1]:
        room.pop()
    if len(set(room)) < 3:
        raise DataError(f"{place}: room = {values['room']!r}; expected at least 3 different points")
    return Scene(str(values["identifier"]), float(score), humans, objects, tuple(links), tuple(room))


def _list(values: Mapping[str, Any], name: str, place: str) -> list[Any]:
    members = values[name]
    if not isinstance(members, list):
        raise DataError(f"{place}: {name} = {members!r}; expected a list")
    return members


def _id(values: Any, place: str) -> int:
    number = values.get("id") if isinstance(values, dict) else None
    if not isinstance(number, int) or isinstance(number, bool):
        raise DataError(f"{place}: {values!r}; expected an object whose id is a whole number")
    return number


def _pose(values: Any, nodes: dict[int, int], place: str) -> Pose:
    number = _id(values, place)
    if number in nodes:
        raise DataError(f"{place}: id = {number} twice; expected another than {', '.join(map(str, nodes))}")
    for name in ("xPos", "yPos", "orientation"):
        if not _is_number(values.get(name)):
            raise DataError(f"{place}: id {number}: {name} = {values.get(name)!r}; expected a finite number")
    nodes[number] = len(nodes)
    turn = values["orientation"] / 180
    if abs(turn) > 1:
        turn = (turn + 1) % 2 - 1
    return values["xPos"] / 100, values["yPos"] / 100, turn


def _link(link: Any, nodes: Mapping[int, int], humans: int, place: str) -> tuple[int, int]:
    ends = link[:2] if isinstance(link, list) else []
    if len(ends) < 2 or ends[0] == ends[1] or any(type(end) is not int or not nodes.get(end) for end in ends):
        known = ", ".join(str(number) for number, node in nodes.items() if node) or "none"
        raise DataError(f"{place}: links: {link!r}; expected two different ids of humans or objects: {known}")
    first, second = sorted(nodes[end] for end in ends)
    if first > humans:
        raise DataError(f"{place}: links: {link!r} joins two objects; expected at least one human")
    return first, second


def _corner(point: Any, place: str) -> Point:
    if not isinstance(point, list) or len(point) != 2 or not all(map(_is_number, point)):
        raise DataError(f"{place}: room: {point!r}; expected [x, y], two finite numbers")
    return point[0] / 100, point[1] / 100


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
