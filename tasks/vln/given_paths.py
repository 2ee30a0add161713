"""Instructions and paths that somebody has in hand: from where to where, in houses that a model is in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any, TextIO

from fedapps.tasks.answers import finite_numbers
from torch import Tensor

from fedapps.base.errors import DataError, listed
from fedapps.base.tables import json_lines, name_of
from fedapps.base.text_files import read_json, shown

from .houses import Houses

SHOWN = 5  # houses that a message names


@dataclass(frozen=True)
class HousePath:
    """A path through the house ``scan``.

    Attributes
    ----------
    scan : str
    viewpoints : tuple of str
        From the start on; a viewpoint occurs once for each visit.
    heading : float
        The direction in radians that one faces at the start, clockwise from +y.
    positions : tuple of (float, float, float)
        Of the viewpoints, in metres, z up.
    stopped : bool
        Whether the agent chose to stop, and did not run out of ``vln.max-actions``.
    """

    scan: str
    viewpoints: tuple[str, ...]
    heading: float = 0.0
    positions: tuple[tuple[float, float, float], ...] = ()
    stopped: bool = True


@dataclass(frozen=True)
class Start:
    """An instruction and where it begins: a viewpoint of the house ``scan``, and a heading in radians clockwise from
    +y.
    """

    instruction: str
    scan: str
    viewpoint: str
    heading: float = 0.0


def check_stop(houses: Houses, scan: str, viewpoint: str, heading: float) -> None:
    """Raise :class:`DataError` unless there is such a viewpoint in ``houses``, and the heading is finite."""
    if not isinstance(scan, str) or scan not in houses.scans:
        raise DataError(f"house {scan!r}: the model is in {listed(houses.scans, SHOWN)}; enter(folder) the house")
    if f"{scan}_{viewpoint}" not in houses.rows:
        raise DataError(f"house {scan}: no viewpoint {viewpoint!r} in its graph")
    finite_numbers(heading, f"house {scan}, viewpoint {viewpoint}: heading")


def check_path(houses: Houses, path: HousePath) -> None:
    """Raise :class:`DataError` unless a path of at least two viewpoints can be walked in ``houses``."""
    if len(path.viewpoints) < 2:
        raise DataError(f"house {path.scan}: a path of {len(path.viewpoints)} viewpoints; expected at least 2")
    for viewpoint in path.viewpoints:
        check_stop(houses, path.scan, viewpoint, path.heading)
    rows = [houses.rows[f"{path.scan}_{viewpoint}"] for viewpoint in path.viewpoints]
    for index in range(len(rows) - 1):
        if not bool((houses.neighbour[rows[index]] == rows[index + 1]).any()):
            start, stop = path.viewpoints[index : index + 2]
            raise DataError(f"house {path.scan}: the graph has no edge from {start} to {stop}")


def walked(houses: Houses, start: Start, rows: Tensor, max_actions: int) -> HousePath:
    """The path through the ``rows`` of ``houses`` that an agent walked in at most ``max_actions``."""
    names = tuple(houses.names[row].removeprefix(f"{start.scan}_") for row in rows.tolist())
    positions = tuple((x, y, z) for x, y, z in houses.positions[rows].tolist())
    return HousePath(start.scan, names, start.heading, positions, stopped=len(rows) <= max_actions)


def entries_of(source: Path | TextIO) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects of JSON lines, or of a JSON array in a file ``.json``, each with its place for messages."""
    if isinstance(source, Path) and ".json" in source.suffixes:
        entries = read_json(source)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{source}: expected a JSON array of objects, or JSON lines in a file .jsonl")
        yield from ((f"{source}, entry {number}", entry) for number, entry in enumerate(entries, 1))
    else:
        name = source if isinstance(source, Path) else name_of(source)
        yield from ((f"{name}, line {number}", entry) for number, entry in json_lines(source))


def _text(location: str, entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise DataError(f"{location}: {name} = {shown(value)}; expected a text")
    return value


def _heading(location: str, entry: Mapping[str, Any]) -> float:
    value = entry.get("heading", 0.0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not -2 * pi <= value <= 2 * pi + 0.01:
        raise DataError(f"{location}: heading = {shown(value)}; expected radians, from -2 pi to 2 pi")
    return float(value)


def house_named(location: str, entry: Mapping[str, Any]) -> str:
    """The name of the house, ``scan``, of an object. Raise :class:`DataError` if it has none."""
    return _text(location, entry, "scan")


def path_of(location: str, entry: Mapping[str, Any]) -> HousePath:
    """The path of an object: ``scan``, ``path`` and perhaps ``heading``. Raise :class:`DataError` if it has none."""
    stops = entry.get("path")
    if not isinstance(stops, list) or not stops or not all(isinstance(stop, str) for stop in stops):
        raise DataError(f"{location}: path = {shown(stops)}; expected names of viewpoints")
    return HousePath(house_named(location, entry), tuple(stops), _heading(location, entry))


def starts_of(location: str, entry: Mapping[str, Any]) -> Iterator[Start]:
    """The instructions of an object: ``instruction`` or a list ``instructions``, ``scan``, ``viewpoint`` or the first
    one of ``path``, and perhaps ``heading``. Raise :class:`DataError` if it has none.
    """
    scan, heading = house_named(location, entry), _heading(location, entry)
    viewpoint = _text(location, entry, "viewpoint") if "viewpoint" in entry else path_of(location, entry).viewpoints[0]
    texts = entry.get("instructions", [entry.get("instruction")])
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{location}: no instruction; expected a text instruction, or a list instructions")
    for text in texts:
        yield Start(text, scan, viewpoint, heading)
