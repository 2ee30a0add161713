"""Mapping files: where in a log the signals stand that a task needs, in which units and in which frame.

A task declares its :class:`Signal`\\ s. A mapping has a table for each, and a table of the task's settings. ``draft``
writes a mapping from what a log has, for people to check.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import pi
from pathlib import Path
from textwrap import wrap
from typing import Any

from fedapps.base.errors import DataError
from fedapps.base.options import allowed, did_you_mean, option, option_fields, parse_options
from fedapps.base.rows import FORMATS
from fedapps.base.text_files import read_toml, shown

from .readers import IMAGES, QUATERNION, Topic, columns_of, open_log

#: The units of each quantity, as factors of the first one.
UNITS: Mapping[str, Mapping[str, float]] = {
    "length": {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0},
    "speed": {"m/s": 1.0, "cm/s": 0.01, "km/h": 1 / 3.6},
    "acceleration": {"m/s2": 1.0, "cm/s2": 0.01},
    "angle": {"rad": 1.0, "deg": pi / 180, "quaternion": 1.0},
    "degrees": {"deg": 1.0},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "number": {"": 1.0},
    "word": {"": 1.0},
    "image": {"": 1.0},
}
#: The signal of the robot's own motion, to which other positions can be relative.
ROBOT = "robot"
_OPEN = "?"  # what a draft leaves to the user
_SHOWN, _WIDTH = 80, 118  # columns of a topic in a draft, and characters of a comment
#: Names of columns that tell people or cars apart, and of those with times, for drafts.
_IDS, _TIMES = ("id", "track_id", "object_id", "name"), ("time", "timestamp", "t", "stamp", "time_s")


@dataclass(frozen=True)
class Field:
    """A value of a signal: its quantity, the columns where a draft looks for it, and whether a mapping must name it."""

    quantity: str
    guesses: tuple[str, ...] = ()
    required: bool = True


@dataclass(frozen=True)
class Signal:
    """What a task needs of a log under one name: what it is, its fields, whether several, told apart by ``id``, stand
    in a topic, and whether a value holds until the next message.
    """

    about: str
    fields: Mapping[str, Field]
    many: bool = False
    holds: bool = False


def _ends(*names: str) -> tuple[str, ...]:
    prefixes = ("pose.pose.", "pose.", "twist.twist.", "twist.", "")
    return tuple(prefix + name for name in names for prefix in prefixes)


#: The motion on a plane of a robot, a person or a car.
MOTION: Mapping[str, Field] = {
    "x": Field("length", _ends("position.x", "x")),
    "y": Field("length", _ends("position.y", "y")),
    "vx": Field("speed", _ends("linear.x", "velocity.x", "vx"), required=False),
    "vy": Field("speed", _ends("linear.y", "velocity.y", "vy"), required=False),
    "heading": Field("angle", _ends("orientation", "heading", "yaw", "theta"), required=False),
}


@dataclass(frozen=True)
class Column:
    """A column of a message and its unit; with the unit "quaternion" also four, of x, y, z and w."""

    column: str = option("", "Name of the column")
    unit: str = option("", "Its unit")


@dataclass(frozen=True)
class Selector:
    """Where a signal stands, beside its columns."""

    topic: str = option("", "Topic, or a glob pattern that matches one topic alone")
    frame: str = option("", "Frame of the positions, as in the headers of messages")
    velocity: str = option(
        "frame", "Axes of vx and vy: frame, or body (vx ahead, as in ROS)", choices=("frame", "body")
    )
    relative: bool = option(False, "Whether x is ahead of the robot and y to its left; without vx and vy")
    each: str = option("", "List in a message whose elements are the people or cars")
    id: str = option("", "Column that tells people or cars apart")
    valid: str = option("", "Column of which messages below `least`, or without a number, are left out")
    least: float = option(0.0, "Smallest value of `valid` that is kept")


@dataclass(frozen=True)
class Source:
    """A signal and where it stands in a log."""

    name: str
    signal: Signal = field(repr=False)
    selector: Selector
    time: Column | None
    fields: Mapping[str, Column]

    @property
    def columns(self) -> set[str]:
        """The columns that a reader must read for all but images."""
        columns = [column for key, column in self.fields.items() if self.signal.fields[key].quantity != "image"]
        named = [name for column in columns for name in column.column.split(",")]
        named += [self.time.column if self.time else "", self.selector.id, self.selector.valid]
        return {name for name in named if name}


@dataclass(frozen=True)
class LogMapping:
    """A mapping file: the source of each signal, and the settings of the task."""

    path: Path
    sources: Mapping[str, Source]
    settings: Any

    def __str__(self) -> str:
        """All that decides what an import writes."""
        return repr((self.sources, self.settings))


def read_mapping(path: Path, signals: Mapping[str, Signal], settings: type) -> LogMapping:
    """Read a mapping file.

    Raises
    ------
    DataError
        A signal or a column is missing, or a key, a unit, a setting or a frame is not allowed. All errors are named.
    """
    content = read_toml(path)
    errors = [f"{key}: unknown key; known keys: settings, signals" for key in content.keys() - {"settings", "signals"}]
    declared = _tables(content.get("signals", {}), "signals", errors)
    tables = {name: _tables(table, f"signals.{name}", errors) for name, table in declared.items()}
    values, wrong = parse_options(settings, _tables(content.get("settings", {}), "settings", errors), "settings.")
    errors += wrong
    for name in tables.keys() - signals.keys():
        known = ", ".join(signals)
        errors.append(f"signals.{name}: unknown signal{did_you_mean(name, signals)}; the task needs {known}")
    sources = {}
    for name, signal in signals.items():
        if name in tables:
            sources[name] = _source(name, signal, tables[name], errors)
        else:
            errors.append(f"signals.{name}: missing; name the topic and the columns of {signal.about}")
    is_relative = any(source.selector.relative for source in sources.values())
    if is_relative and ROBOT in sources and "heading" not in sources[ROBOT].fields:
        errors.append(f"relative: needs the direction of the robot; name signals.{ROBOT}.heading")
    placed = [source.selector for source in sources.values() if "y" in source.fields and not source.selector.relative]
    if len(frames := sorted({selector.frame for selector in placed})) > 1:
        errors.append(f"frame: {', '.join(frames)}; transform all positions into one frame, such as map")
    if errors:
        raise DataError("\n  ".join([f"{path}: the mapping has {len(errors)} errors:", *errors]))
    return LogMapping(path, sources, settings(**values))


def _tables(declared: Any, name: str, errors: list[str]) -> dict[str, Any]:
    """What stands under a key that must be a table."""
    if isinstance(declared, dict):
        return declared
    errors.append(f"{name} = {shown(declared)}: must be a table [{name}]")
    return {}


def _source(name: str, signal: Signal, table: Mapping[str, Any], errors: list[str]) -> Source:
    prefix = f"signals.{name}."
    quantities = {"time": "time", **{key: entry.quantity for key, entry in signal.fields.items()}}
    values, wrong = parse_options(Selector, {key: table[key] for key in table if key not in quantities}, prefix)
    errors += wrong
    selector = Selector(**values)
    selector = replace(selector, frame=selector.frame.lstrip("/"))  # ROS 1 writes it in headers, ROS 2 does not
    needed = {"topic": True, "frame": "y" in table, "id": signal.many}
    errors += [
        f"{prefix}{key}: must be the {key} of {signal.about}, as the log has it"
        for key, need in needed.items()
        if need and getattr(selector, key) in ("", _OPEN)
    ]
    columns = {
        key: _column(f"{prefix}{key}", table.get(key, {}), quantity, errors)
        for key, quantity in quantities.items()
        if key in table or (key != "time" and signal.fields[key].required)
    }
    if selector.velocity == "body" and not {"vx", "vy", "heading"} <= columns.keys():
        errors.append(f"{prefix}velocity = 'body': needs vx, vy and heading; name their columns")
    errors += [
        f"{prefix}{key}: is for the signals of several people or cars; remove it"
        for key in ("id", "each", "relative")
        if getattr(selector, key) and not signal.many
    ]
    if selector.least and not selector.valid:
        errors.append(f"{prefix}least = {selector.least}: name the column that it limits in {prefix}valid")
    if selector.relative and columns.keys() & {"vx", "vy"}:
        errors.append(f"{prefix}relative = true: vx and vy follow from the positions then; remove them")
    return Source(name, signal, selector, columns.pop("time", None), columns)


def _column(key: str, declared: Any, quantity: str, errors: list[str]) -> Column:
    values, wrong = parse_options(Column, declared if isinstance(declared, dict) else {"column": declared}, f"{key}.")
    column = Column(**values)
    if column.column in ("", _OPEN) or column.column.count(",") not in (0, 3 * (column.unit == "quaternion")):
        wrong.append(f"{key} = {shown(declared)}: must be {{ column = NAME, unit = UNIT }} with a column of the log")
    if column.unit not in UNITS[quantity]:
        wrong.append(f"{key}: unit {column.unit!r}; expected one of {', '.join(UNITS[quantity])}")
    errors += wrong
    return column


def draft(advice: str, signals: Mapping[str, Signal], settings: type, path: Path) -> str:
    """A mapping file for a log, with the topics and columns that it has as comments, and guesses to be checked.

    Raises
    ------
    DataError
        The log cannot be read.
    """
    topics = open_log(path).topics()
    columns = {name: dict(columns_of(topic.example)) for name, topic in topics.items()}
    check = "Check every topic, column, unit and frame; replace each ? by what the log has, and remove what it lacks."
    lines = [*_comment(advice), *_comment(check), "", "[settings]"]
    for key, declared in option_fields(settings).items():
        lines += _comment(f"{declared.metadata['doc']} ({allowed(declared.metadata, type(declared.default))})")
        lines.append(f"{key} = {json.dumps(declared.default)}")
    for name, signal in signals.items():
        lines += ["", *_comment(signal.about), f"[signals.{name}]", *_drafted(signal, topics, columns)]
    for name, topic in topics.items():
        lines += ["", f"# topic {name}: {topic.kind}, such as"]
        lines += [f"#   {column} = {shown(value)}" for column, value in list(columns[name].items())[:_SHOWN]]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in wrap(text, _WIDTH)]


def _drafted(signal: Signal, topics: Mapping[str, Topic], columns: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a signal: the topic in which most of its columns were found."""
    guesses = {name: _guessed(signal, topic.kind, columns[name]) for name, topic in topics.items()}
    best = max(guesses, key=lambda name: len(guesses[name]))
    guess, has, kind = guesses[best], columns[best], topics[best].kind
    named = "*" if kind in FORMATS and len(topics) == 1 else best  # the topic of a table is the name of its file
    yield f"topic = {json.dumps(named if guess else _OPEN)}"
    if guess and ("header.stamp" in has or kind in FORMATS):
        time = next((name for name in ("header.stamp", *_TIMES) if name in has), _OPEN)
        yield f'time = {{ column = {json.dumps(time)}, unit = "s" }}  # {", ".join(UNITS["time"])}; or when recorded'
    if "y" in signal.fields:
        yield f"frame = {json.dumps((guess and has.get('header.frame_id')) or _OPEN)}  # the same for all positions"
    prefix = guess.pop("each", "")
    if signal.many:
        yield f"each = {json.dumps(prefix.removesuffix('[].'))}  # the list in a message, if there is one"
        yield f"id = {json.dumps(guess.pop('id', _OPEN))}  # what tells them apart"
        yield "# relative = true  # for positions ahead (x) and to the left (y) of the robot"
    for key, entry in signal.fields.items():
        units, name = list(UNITS[entry.quantity]), guess.get(key, _OPEN)
        unit = "quaternion" if has.get(prefix + name) == QUATERNION else units[0]
        absent = "" if key in guess or entry.required else "# "
        stated = f", unit = {json.dumps(unit)} }}  # {', '.join(units)}" if unit else " }"
        yield f"{absent}{key} = {{ column = {json.dumps(name)}{stated}"
    if {"vx", "heading"} <= guess.keys() and kind.endswith("Odometry"):
        yield 'velocity = "body"  # vx ahead and vy to the left, as in the odometry of ROS; frame: along its axes'


def _guessed(signal: Signal, kind: str, columns: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a topic that may be those of a signal, by field; for several people also ``each`` and ``id``."""
    guess: dict[str, str] = {}
    prefix = next((name[: name.index("[].") + 3] for name in columns if "[]." in name), "") if signal.many else ""
    for key, entry in signal.fields.items():
        names = [name for name in entry.guesses if prefix + name in columns]
        if entry.quantity == "image":
            names = ["."] if kind.endswith("Image") else [name for name, value in columns.items() if value in IMAGES]
        guess |= {key: names[0]} if names else {}
    if signal.many:
        ids = [name for name in _IDS if prefix + name in columns]
        return {"each": prefix, "id": ids[0], **guess} if ids and guess else {}
    return guess
