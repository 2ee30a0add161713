"""The values of signals in a log, and at the steps of its sessions.

A session is a stretch of time in which no signal is silent for longer than ``gap`` seconds and no clock goes back.
Within it, a number is interpolated linearly between the two messages around a step (angles along the shorter way), and
a signal that holds has the value of the last message. Nothing is interpolated between sessions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import reduce
from math import asin, atan2, degrees, hypot, isfinite, pi
from typing import Any, NamedTuple

import numpy as np

from fedapps.base.errors import DataError, listed
from fedapps.base.text_files import shown

from .mapping import ROBOT, UNITS, Column, LogMapping, Source
from .readers import Log, Message, value_at

_FASTEST = 100.0  # m/s: faster is a wrong unit
_MANY_TURNS = 4 * pi  # rad: larger angles are degrees
_MOST_TILT = 0.8  # rad of roll and pitch, beyond which the parts of a quaternion stand in another order
#: Metres from which velocities are compared with positions, and the relative difference that is wrong.
_WAY, _WRONG = 2.0, 0.5
#: Seconds, and share of a step, within which times are equal: those of LeRobot are rounded to float32.
ROUNDING = 1e-4


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


def gather(log: Log, mapping: LogMapping) -> Gathered:
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
        one = (
            str(value_at(message.content, source.selector.id, message.location))
            if source.selector.id and not source.selector.each
            else ""
        )
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
        elements = (
            value_at(message.content, source.selector.each, message.location)
            if source.selector.each
            else [message.content]
        )
        for element in elements:
            _check_frame(source, element, message.location)
            if (
                source.selector.valid
                and not _float(value_at(element, source.selector.valid, message.location)) >= source.selector.least
            ):
                gathered.invalid += 1
                continue
            key = str(value_at(element, source.selector.id, message.location)) if source.selector.id else ""
            samples = rows[source.name].setdefault(key, [])
            values = [
                _value(source.signal.fields[key].quantity, column, element, message.location)
                for key, column in source.fields.items()
            ]
            if not samples or samples[-1][:2] != (epoch, time):
                samples.append((epoch, time, values))
            elif samples[-1][2] != values:  # otherwise the message was recorded twice
                raise DataError(
                    f"{message.location}: signals.{source.name} has other values at the same time, {time:.3f} s; give "
                    "a time of finer resolution"
                )
    for name, by_id in rows.items():
        series = {key: _series(mapping.sources[name], samples) for key, samples in by_id.items()}
        if mapping.sources[name].selector.relative:
            (robot,) = gathered.series[ROBOT].values()
            series = {key: _in_frame(one, robot, mapping.settings.gap) for key, one in series.items()}
        gathered.series[name] = {key: one for key, one in series.items() if len(one.time)}
        if not gathered.series[name]:
            raise DataError(
                f"{log.path}: no message of signals.{name} is left; lower signals.{name}.least, or record its topic"
                + (" and the robot at the same times" if mapping.sources[name].selector.relative else "")
            )
    return gathered


def _in_frame(series: Series, robot: Series, gap: float) -> Series:
    """Positions that were relative to the robot, in the frame of the robot, at the times when its pose is known."""
    times = zip(series.epoch.tolist(), series.time.tolist(), strict=True)
    poses = [at_time(robot, epoch, time, gap) for epoch, time in times]
    known = np.array([pose is not None for pose in poses], dtype=bool)
    names = ("x", "y", "heading")
    x, y, heading = (np.array([pose[name] for pose in poses if pose]) for name in names)
    values = {name: column[known] for name, column in series.values.items()}
    east, north = turned(values["x"], values["y"], heading)
    values |= {"x": x + east, "y": y + north}
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
        matching = [topic for topic in known if fnmatchcase(topic, source.selector.topic)]
        if len(matching) != 1:
            raise DataError(
                f"{log.path}: signals.{source.name}.topic = {source.selector.topic!r} is the name of {len(matching)} "
                f"topics; expected one of {listed(known, 20)}"
            )
        topics.setdefault(matching[0], []).append(source)
    wanted = {topic: {*images}.union(*(source.columns for source in of_topic)) for topic, of_topic in topics.items()}
    for message in log.messages(wanted):
        for source in topics[message.topic]:
            _check_frame(source, message.content, message.location)
            time = message.recorded
            if source.time:
                time = _value("time", source.time, message.content, message.location)
            if not isfinite(time):
                raise DataError(
                    f"{message.location}: no time; name the column with "
                    f"signals.{source.name}.time = {{ column = NAME, unit = {' or '.join(UNITS['time'])} }}"
                )
            yield source, message, time


def _check_frame(source: Source, content: Any, location: str) -> None:
    frame, header = source.selector.frame, getattr(content, "header", None)
    if frame and header is not None and header.frame_id.lstrip("/") != frame:
        raise DataError(
            f"{location}: frame {header.frame_id!r}; signals.{source.name}.frame says {frame!r}: transform the "
            "positions into one frame, or correct the mapping"
        )


def _value(quantity: str, column: Column, element: Any, location: str) -> Any:
    if quantity == "image":
        return 0.0  # decoded later, if it is chosen
    if quantity == "word":
        return str(value_at(element, column.column, location))
    if column.unit == "quaternion":
        return _heading(column.column, element, location)
    number = _number(column.column, element, location)
    if column.unit == "rad" and abs(number) > _MANY_TURNS:
        raise DataError(f'{location}, column {column.column}: {number:g} rad; write unit = "deg" for degrees')
    return number * UNITS[quantity][column.unit]


def _number(name: str, element: Any, location: str) -> float:
    value = value_at(element, name, location)
    if hasattr(value, "nanosec"):
        value = value.sec + 1e-9 * value.nanosec
    number = _float(value)
    if not isfinite(number):
        advice = "with the keys valid and least, another column, such as a status, leaves messages out"
        raise DataError(f"{location}, column {name}: {shown(value)}; expected a finite number ({advice})")
    return number


def _float(value: Any) -> float:
    """A number, NaN if the value is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return np.nan


def _heading(name: str, element: Any, location: str) -> float:
    """The rotation about z in rad."""
    names = name.split(",") if "," in name else [f"{name}.{part}" for part in "xyzw"]
    x, y, z, w = (_number(part.strip(), element, location) for part in names)
    where = f"{location}, column {name}: a quaternion"
    if abs(hypot(x, y, z, w) - 1) > 0.01:
        raise DataError(f"{where} of length {hypot(x, y, z, w):.3g}; expected length 1, in the order x, y, z, w")
    roll = atan2(2 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    pitch = asin(max(-1.0, min(1.0, 2 * (w * y - z * x))))
    if (tilt := max(abs(roll), abs(pitch))) > _MOST_TILT:
        advice = "expected the order x, y, z, w, and a frame whose z points up"
        raise DataError(f"{where} that tilts by {degrees(tilt):.0f} degrees; {advice}")
    return atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))


def _series(source: Source, rows: Sequence[tuple[int, float, list[Any]]]) -> Series:
    epochs, times, values = zip(*rows, strict=True)
    columns = {name: np.array(column) for name, column in zip(source.fields, zip(*values, strict=True), strict=True)}
    if source.selector.velocity == "body":
        columns["vx"], columns["vy"] = turned(columns["vx"], columns["vy"], columns["heading"])
    if "heading" in columns:
        columns["heading"] = np.unwrap(columns["heading"])
    return Series(np.array(epochs), np.array(times), columns)


def sessions(series: Sequence[Series], holds: Sequence[bool], step: float, gap: float) -> Iterator[Session]:
    """Yield the sessions in which all of some signals have values, at the multiples of ``step``."""
    for epoch, begin, end in reduce(_overlaps, ([*pieces(one, gap)] for one in series)):
        first, last = np.ceil(begin / step - ROUNDING), np.floor(end / step + ROUNDING)
        if last >= first:
            times = np.arange(first, last + 1) * step
            yield Session(times, [at(one, epoch, times, hold) for one, hold in zip(series, holds, strict=True)])


def at(series: Series, epoch: int, times: np.ndarray, holds: bool) -> Mapping[str, np.ndarray]:
    """The values of a signal at some times of an epoch, between its first and last message."""
    inside = series.epoch == epoch
    known = series.time[inside]
    last = np.maximum(np.searchsorted(known, times + ROUNDING, side="right") - 1, 0)
    return {
        name: values[inside][last] if holds or values.dtype.kind == "U" else np.interp(times, known, values[inside])
        for name, values in series.values.items()
    }


def at_time(series: Series, epoch: int, time: float, gap: float, holds: bool = False) -> dict[str, Any] | None:
    """The values of a signal at one time; ``None`` outside its sessions."""
    if not any(other == epoch and begin <= time <= end + gap * holds for other, begin, end in pieces(series, gap)):
        return None
    return {name: values[0] for name, values in at(series, epoch, np.array([time]), holds).items()}


def pieces(series: Series, gap: float) -> Iterator[tuple[int, float, float]]:
    """The epoch, the first and the last time of each stretch without a silence longer than ``gap``."""
    starts = begins(series, gap)
    for first, last in zip(np.r_[0, starts], np.r_[starts - 1, len(series.time) - 1], strict=True):
        yield int(series.epoch[first]), float(series.time[first]), float(series.time[last])


def begins(series: Series, gap: float) -> np.ndarray:
    """The indices of the messages after a silence longer than ``gap``, or after the clock went back."""
    return np.flatnonzero((np.diff(series.epoch) != 0) | (np.diff(series.time) > gap + ROUNDING)) + 1


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
    if len(change) > 1:
        change[0] = change[1]
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


def turned(x: Any, y: Any, angle: Any) -> tuple[np.ndarray, np.ndarray]:
    """Vectors turned counterclockwise by an angle in rad."""
    return x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)
