"""The signals that a task needs of a log: where a mapping says that they stand, in which units and frame, and their
values at the steps of a session.

A session is a stretch of time in which no signal is silent for longer than ``gap`` seconds and no clock goes back.
Within it, a number is interpolated linearly between the two messages around a step (angles along the shorter way), and
a signal that holds has the value of the last message. Nothing is interpolated between sessions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from math import asin, atan2, cos, hypot, isfinite, pi, sin
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedapps.base.errors import DataError, listed
from fedapps.base.options import did_you_mean
from fedapps.base.text_files import read_toml, shown

from .readers import Log, Message, value_at

#: The units of each quantity, as factors of the first one.
UNITS: Mapping[str, Mapping[str, float]] = {
    "length": {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0},
    "speed": {"m/s": 1.0, "cm/s": 0.01, "km/h": 1 / 3.6},
    "acceleration": {"m/s2": 1.0, "cm/s2": 0.01},
    "angle": {"rad": 1.0, "deg": pi / 180, "quaternion": 1.0},
    "degrees": {"deg": 1.0},
    "time": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "number": {"1": 1.0},
    "word": {"": 1.0},
    "image": {"": 1.0},
}
#: The signal of the robot's own motion, to which other positions can be relative.
ROBOT = "robot"
OPEN = "?"  # what a draft leaves to the user
_FASTEST = 100.0  # m/s: faster is a wrong unit
_MANY_TURNS = 4 * pi  # rad: larger angles are degrees
_MOST_TILT = 0.8  # rad of roll and pitch, beyond which the parts of a quaternion stand in another order
_WAY, _WRONG = (
    2.0,
    0.5,
)  # metres from which velocities are compared with positions, and the relative error that is wrong
_ROUNDING = 1e-6  # seconds, and share of a step, within which times are equal


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
    return tuple(
        f"{prefix}{name}" for name in names for prefix in ("pose.pose.", "pose.", "twist.twist.", "twist.", "")
    )


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
    """Some columns of a message, four for the parts x, y, z and w of a quaternion and else one, and their unit."""

    names: tuple[str, ...]
    unit: str
    factor: float


@dataclass(frozen=True)
class Source:
    """Where a signal stands in a log, as a mapping says it."""

    name: str
    topic: str
    fields: Mapping[str, Column]
    quantities: Mapping[str, str]
    time: Column | None = None
    frame: str = ""
    each: str = ""
    id: str = ""
    body: bool = False
    relative: bool = False
    valid: str = ""
    least: float = 0.0

    @property
    def columns(self) -> set[str]:
        """The columns that a reader must read for all but images, without the elements of lists."""
        named = [
            name for key, column in self.fields.items() if self.quantities[key] != "image" for name in column.names
        ]
        named += [*(self.time.names if self.time else ()), self.id, self.valid]
        return {name.partition("[")[0] for name in named if name}


@dataclass(frozen=True)
class LogMapping:
    """A mapping file: the source of each signal, and the settings of the task."""

    path: Path
    sources: Mapping[str, Source]
    settings: Mapping[str, Any]


class Series(NamedTuple):
    """The messages of one signal, or of one person or car of it: ``[n]`` each, numbers of ``heading`` continuous."""

    epoch: np.ndarray
    time: np.ndarray
    values: Mapping[str, np.ndarray]


class Session(NamedTuple):
    """The times ``[T]`` of the steps of a session in seconds, and the values ``[T]`` of each of its signals."""

    time: np.ndarray
    values: Sequence[Mapping[str, np.ndarray]]


@dataclass
class Gathered:
    """The signals of a log, and what was found in their times."""

    series: dict[str, dict[str, Series]]
    jumps: int = 0
    invalid: int = 0


def read_mapping(path: Path, signals: Mapping[str, Signal]) -> LogMapping:
    """Read a mapping file.

    Raises
    ------
    DataError
        A signal or a column is missing, or a key, a unit or a frame is not allowed. All errors are named.
    """
    content = read_toml(path)
    tables = content.get("signals", {})
    errors = [
        f"{key}: unknown key; known keys: settings, signals" for key in content if key not in ("settings", "signals")
    ]
    errors += [
        f"signals.{name}: unknown signal{did_you_mean(name, signals)}; the task needs {', '.join(signals)}"
        for name in tables
        if name not in signals
    ]
    sources = {}
    for name, signal in signals.items():
        table = tables.get(name)
        if isinstance(table, dict):
            sources[name] = _source(name, signal, table, errors)
        else:
            errors.append(f"signals.{name}: missing; name the topic and the columns of {signal.about}")
    if any(source.relative for source in sources.values()) and "heading" not in sources[ROBOT].fields:
        errors.append(f"relative: needs the direction of the robot; name signals.{ROBOT}.heading")
    frames = {source.frame for source in sources.values() if "y" in source.fields and not source.relative}
    if len(frames) > 1:
        errors.append(
            f"frame: {', '.join(sorted(map(repr, frames)))}; transform all positions into one frame, such as map"
        )
    if errors:
        raise DataError("\n  ".join([f"{path}: the mapping has {len(errors)} errors:", *errors]))
    return LogMapping(path, sources, content.get("settings", {}))


def _source(name: str, signal: Signal, table: Mapping[str, Any], errors: list[str]) -> Source:
    keys = {"topic", "time", "valid", "least", *signal.fields}
    keys |= {"frame"} if "y" in signal.fields else set()
    keys |= {"velocity"} if "heading" in signal.fields else set()
    keys |= {"each", "id", "relative"} if signal.many else set()
    prefix = f"signals.{name}."
    for key in table:
        if key not in keys:
            errors.append(
                f"{prefix}{key}: unknown key{did_you_mean(key, keys, prefix)}; known keys: {', '.join(sorted(keys))}"
            )
    words = {key: table.get(key, "") for key in ("topic", "frame", "velocity", "each", "id", "valid")}
    needed = {"topic"} | ({"frame"} if "y" in table else set()) | ({"id"} if signal.many else set())
    for key, word in words.items():
        if not isinstance(word, str) or word == OPEN or (key in needed and not word):
            errors.append(f"{prefix}{key} = {word!r}: must be the name of the {key}, as in the log")
    if words["velocity"] not in ("", "frame", "body"):
        errors.append(
            f"{prefix}velocity = {words['velocity']!r}: must be frame (vx and vy along the axes of the frame) or body "
            "(vx ahead, as in the odometry of ROS)"
        )
    columns = {}
    for key, quantity in {"time": "time", **{key: own.quantity for key, own in signal.fields.items()}}.items():
        required = key in signal.fields and signal.fields[key].required
        if key in table or required:
            columns[key] = _column(f"{prefix}{key}", table.get(key), quantity, errors)
    if words["velocity"] == "body" and not {"vx", "vy", "heading"} <= columns.keys():
        errors.append(f"{prefix}velocity = 'body': needs vx, vy and heading; name their columns")
    least = table.get("least", 0)
    if isinstance(least, bool) or not isinstance(least, (int, float)):
        errors.append(f"{prefix}least = {least!r}: must be a number, the smallest value of {prefix}valid to keep")
        least = 0
    relative = table.get("relative", False)
    if not isinstance(relative, bool) or (relative and columns.keys() & {"vx", "vy"}):
        errors.append(
            f"{prefix}relative = {relative!r}: must be true, for positions ahead and to the left of the robot, without "
            "vx and vy, or false"
        )
    quantities = {key: own.quantity for key, own in signal.fields.items()}
    body, time = words.pop("velocity") == "body", columns.pop("time", None)
    rest = {"time": time, "body": body, "relative": relative is True, "least": least}
    return Source(name, fields=columns, quantities=quantities, **rest, **words)


def _column(key: str, declared: Any, quantity: str, errors: list[str]) -> Column:
    units = UNITS[quantity]
    declared = declared if isinstance(declared, dict) else {"column": declared}
    names, unit = declared.get("column"), declared.get("unit", "" if "" in units else None)
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name != OPEN for name in names):
        errors.append(f"{key}: {shown(names)}; expected {{ column = NAME, unit = UNIT }} with a column of the log")
    elif len(names) != 1 and not (len(names) == 4 and unit == "quaternion"):
        errors.append(f"{key}: {len(names)} columns; expected one, or four (x, y, z, w) with the unit quaternion")
    if unit not in units:
        errors.append(f"{key}: unit {unit!r}; expected one of {', '.join(units)}")
    if unknown := declared.keys() - {"column", "unit"}:
        errors.append(f"{key}: {', '.join(sorted(unknown))}; expected column and unit alone")
    return Column(tuple(names or ()), str(unit), units.get(str(unit), 1.0))


def gather(log: Log, mapping: LogMapping, gap: float) -> Gathered:
    """Read the signals of a log but their images, of which only the times are read.

    Raises
    ------
    DataError
        A topic or column is missing, a value or a frame is not what the mapping says, or the clock of one table of
        several goes back.
    """
    rows: dict[str, dict[str, list[tuple[int, float, list[Any]]]]] = {name: {} for name in mapping.sources}
    gathered = Gathered({})
    newest: dict[tuple[str, str], float] = {}
    epoch, part = 0, 0
    for source, message, time in signal_messages(log, mapping, mapping.sources):
        one = str(value_at(message.content, source.id, message.location)) if source.id and not source.each else ""
        before = newest.get((source.name, one), time)
        if time < before and not log.ordered:
            raise DataError(
                f"{message.location}: the time goes back from {before:.3f} to {time:.3f} s; the tables of a log have "
                "only their times in common: cut all of them at this time, one folder for each part"
            )
        if time < before or message.part != part:
            gathered.jumps += message.part == part
            epoch, part = epoch + 1, message.part
            newest.clear()
        newest[source.name, one] = time
        elements = value_at(message.content, source.each, message.location) if source.each else [message.content]
        for element in elements:
            if source.valid and float(value_at(element, source.valid, message.location)) < source.least:
                gathered.invalid += 1
                continue
            key = str(value_at(element, source.id, message.location)) if source.id else ""
            own = rows[source.name].setdefault(key, [])
            if own and own[-1][:2] == (epoch, time):
                continue  # the message was recorded twice
            own.append((epoch, time, _values(source, element, message.location)))
    for name, by_id in rows.items():
        series = {key: _series(mapping.sources[name], own) for key, own in by_id.items()}
        if mapping.sources[name].relative:
            (robot,) = gathered.series[ROBOT].values()
            series = {key: _in_frame(own, robot, gap) for key, own in series.items()}
        gathered.series[name] = {key: own for key, own in series.items() if len(own.time)}
        if not gathered.series[name]:
            raise DataError(
                f"{log.path}: no message of signals.{name} is left; lower signals.{name}.least, or record its topic"
                + (" and the robot at the same times" if mapping.sources[name].relative else "")
            )
    return gathered


def _in_frame(series: Series, robot: Series, gap: float) -> Series:
    """Positions that were relative to the robot, in the frame of the robot, at the times when its pose is known."""
    poses = [
        at_time(robot, int(epoch), float(time), gap) for epoch, time in zip(series.epoch, series.time, strict=True)
    ]
    known = np.array([pose is not None for pose in poses], dtype=bool)
    x, y, heading = (
        np.array([[pose[name] for name in ("x", "y", "heading")] for pose in poses if pose]).reshape(-1, 3).T
    )
    values = {name: column[known] for name, column in series.values.items()}
    ahead, left = values["x"], values["y"]
    values["x"] = x + ahead * np.cos(heading) - left * np.sin(heading)
    values["y"] = y + ahead * np.sin(heading) + left * np.cos(heading)
    if "heading" in values:
        values["heading"] = values["heading"] + heading
    return Series(series.epoch[known], series.time[known], values)


def signal_messages(
    log: Log, mapping: LogMapping, names: Iterable[str], images: Iterable[str] = ()
) -> Iterator[tuple[Source, Message, float]]:
    """Yield the messages of some signals, with their source and their time in seconds.

    Columns of images are read only if ``images`` names them.

    Raises
    ------
    DataError
        A topic is missing, has no times, or belongs to another frame.
    """
    known = log.topics()
    topics: dict[str, list[Source]] = {}
    for source in (mapping.sources[name] for name in names):
        matching = [topic for topic in known if fnmatchcase(topic, source.topic)]
        if len(matching) != 1:
            raise DataError(
                f"{log.path}: signals.{source.name}.topic = {source.topic!r} is the name of {len(matching)} topics; "
                f"expected one of {listed(known, 20)}"
            )
        topics.setdefault(matching[0], []).append(source)
    wanted = {topic: {*images}.union(*(source.columns for source in of_topic)) for topic, of_topic in topics.items()}
    for message in log.messages(wanted):
        for source in topics[message.topic]:
            _check_frame(source, message)
            time = message.recorded
            if source.time:
                time = _number(source.time, source.time.names[0], message.content, message.location)
            if not isfinite(time):
                raise DataError(
                    f"{message.location}: no time; name the column with "
                    f"signals.{source.name}.time = {{ column = NAME, unit = {' or '.join(UNITS['time'])} }}"
                )
            yield source, message, time


def _check_frame(source: Source, message: Message) -> None:
    header = getattr(message.content, "header", None)
    if source.frame and header is not None and header.frame_id.lstrip("/") != source.frame:
        raise DataError(
            f"{message.location}: frame {header.frame_id!r}; signals.{source.name}.frame says {source.frame!r}: "
            "transform the positions into one frame, or correct the mapping"
        )


def _values(source: Source, element: Any, location: str) -> list[Any]:
    values: list[Any] = []
    for name, column in source.fields.items():
        quantity = source.quantities[name]
        if quantity == "image":
            values.append(0.0)
        elif quantity == "word":
            values.append(str(value_at(element, column.names[0], location)))
        elif column.unit == "quaternion":
            values.append(_heading(column, element, location))
        else:
            values.append(_number(column, column.names[0], element, location))
            if column.unit == "rad" and abs(values[-1]) > _MANY_TURNS:
                raise DataError(
                    f'{location}, column {column.names[0]}: {values[-1]:g} rad; write unit = "deg" for degrees'
                )
    return values


def _number(column: Column, name: str, element: Any, location: str) -> float:
    value = value_at(element, name, location)
    if hasattr(value, "nanosec"):
        value = value.sec + 1e-9 * value.nanosec
    try:
        number = float(value) * column.factor
    except (TypeError, ValueError):
        number = np.nan
    if not isfinite(number):
        raise DataError(
            f"{location}, column {name}: {shown(value)}; expected a finite number (the keys valid and least of a "
            "signal leave messages out by another column, such as a status)"
        )
    return number


def _heading(column: Column, element: Any, location: str) -> float:
    """The rotation about z in rad."""
    names = column.names if len(column.names) == 4 else [f"{column.names[0]}.{part}" for part in "xyzw"]
    x, y, z, w = (_number(column, name, element, location) for name in names)
    norm = hypot(x, y, z, w)
    if abs(norm - 1) > 0.01:
        raise DataError(
            f"{location}, column {names[0]}: a quaternion of length {norm:.3g}; expected length 1, in x, y, z, w"
        )
    roll = atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    if max(abs(roll), abs(pitch)) > _MOST_TILT:
        raise DataError(
            f"{location}, column {names[0]}: the quaternion tilts by {max(abs(roll), abs(pitch)) * 180 / pi:.0f} "
            "degrees; expected the order x, y, z, w, and a frame whose z points up"
        )
    return atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def _series(source: Source, rows: Sequence[tuple[int, float, list[Any]]]) -> Series:
    epochs, times, values = zip(*rows, strict=True)
    columns = {name: np.array(column) for name, column in zip(source.fields, zip(*values, strict=True), strict=True)}
    if source.body:
        ahead, left, heading = columns["vx"], columns["vy"], columns["heading"]
        columns["vx"] = ahead * np.cos(heading) - left * np.sin(heading)
        columns["vy"] = ahead * np.sin(heading) + left * np.cos(heading)
    if "heading" in columns:
        columns["heading"] = np.unwrap(columns["heading"])
    return Series(np.array(epochs), np.array(times), columns)


def sessions(series: Sequence[Series], holds: Sequence[bool], step: float, gap: float) -> Iterator[Session]:
    """Yield the sessions in which all of some signals have values, at the multiples of ``step``."""
    for epoch, begin, end in reduce(_overlaps, ([*pieces(own, gap)] for own in series)):
        first, last = np.ceil(begin / step - _ROUNDING), np.floor(end / step + _ROUNDING)
        if last >= first:
            times = np.arange(first, last + 1) * step
            yield Session(times, [at(own, epoch, times, hold) for own, hold in zip(series, holds, strict=True)])


def at(series: Series, epoch: int, times: np.ndarray, holds: bool) -> Mapping[str, np.ndarray]:
    """The values of a signal at some times of an epoch, between its first and last message."""
    inside = series.epoch == epoch
    known = series.time[inside]
    last = np.maximum(np.searchsorted(known, times + _ROUNDING, side="right") - 1, 0)
    return {
        name: values[inside][last] if holds or values.dtype.kind == "U" else np.interp(times, known, values[inside])
        for name, values in series.values.items()
    }


def at_time(series: Series, epoch: int, time: float, gap: float, holds: bool = False) -> dict[str, Any] | None:
    """The values of a signal at one time; ``None`` outside its sessions."""
    if not any(own == epoch and begin <= time <= end + gap * holds for own, begin, end in pieces(series, gap)):
        return None
    return {name: values[0] for name, values in at(series, epoch, np.array([time]), holds).items()}


def pieces(series: Series, gap: float) -> Iterator[tuple[int, float, float]]:
    """The epoch, the first and the last time of each stretch without a silence longer than ``gap``."""
    ends = np.flatnonzero((np.diff(series.epoch) != 0) | (np.diff(series.time) > gap))
    for first, last in zip(np.r_[0, ends + 1], np.r_[ends, len(series.time) - 1], strict=True):
        yield int(series.epoch[first]), float(series.time[first]), float(series.time[last])


def _overlaps(
    some: Sequence[tuple[int, float, float]], others: Sequence[tuple[int, float, float]]
) -> list[tuple[int, float, float]]:
    return [
        (epoch, max(begin, other_begin), min(end, other_end))
        for epoch, begin, end in some
        for other, other_begin, other_end in others
        if epoch == other and max(begin, other_begin) <= min(end, other_end)
    ]


def checked_velocity(where: str, values: Mapping[str, np.ndarray], step: float, axes: str = "xy") -> np.ndarray:
    """The velocity ``[T, axes]`` in m/s along each axis; the differences of positions where a log has none.

    Raises
    ------
    DataError
        The velocities do not fit the positions, as in another unit or frame, or nothing moves so fast.
    """
    position = np.stack([values[axis] for axis in axes], axis=1)
    change = np.diff(position, axis=0, prepend=position[:1]) / step
    change[:1] = change[1:2]
    if len(change) and (fastest := float(np.linalg.norm(change, axis=1).max())) > _FASTEST:
        raise DataError(
            f"{where}: moves with {fastest:.4g} m/s by its positions; correct the units of {', '.join(axes)} or time"
        )
    names = [f"v{axis}" for axis in axes]
    if not set(names) <= values.keys():
        return change
    stated = np.stack([values[name] for name in names], axis=1)
    mean = (stated[1:] + stated[:-1]) / 2  # that of a step whose acceleration is constant
    way, stated_way, error = (np.abs(part).sum() * step for part in (change[1:], mean, change[1:] - mean))
    if max(way, stated_way) > _WAY and error > _WRONG * max(way, stated_way):
        raise DataError(
            f"{where}: by {', '.join(axes)} it moves {way:.4g} m, by {', '.join(names)} {stated_way:.4g} m, and they "
            f"differ by {error:.4g} m; correct their units, or write velocity = 'body' if velocities are along the "
            "robot's own axes"
        )
    return stated


def relative(dx: np.ndarray, dy: np.ndarray, heading: float) -> tuple[np.ndarray, np.ndarray]:
    """Metres ahead and to the left of a robot with a heading, of what lies ``dx, dy`` from it."""
    return dx * cos(heading) + dy * sin(heading), dy * cos(heading) - dx * sin(heading)
