"""The keys of time: for which nodes the server waits, and how long simulated devices take."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.options import key_of, option
from fedapps.base.seeding import derive_seed
from fedapps.base.tables import read_table
from fedapps.registry.expressions import Expression, read_expression
from fedapps.sim import devices
from fedapps.strategies import Closing, Staleness

#: a of the staleness functions in the papers.
_PUBLISHED_A = {"polynomial": 0.5, "constant": 1.0, "hinge": 10.0}


@dataclass(frozen=True)
class Pace:
    """For which nodes the server waits. Each field is a key of the run config, which a method can set for itself."""

    mode: str = option(
        "sync",
        "sync: a round waits for its nodes, up to over-selection, deadline or timeout; async: the server waits for no "
        "node and steps whenever buffer updates are in, which then count as a round (FedBuff)",
        choices=["sync", "async"],
    )
    concurrency: int = option(
        0, "nodes at work at a time with mode = async; 0 = the nodes that train in a round", minimum=0
    )
    buffer: int = option(
        0, "updates per step with mode = async; 0 = half of concurrency, rounded up; FedBuff uses 10", minimum=0
    )
    async_update: str = option(
        "difference",
        "with mode = async, add s (y - x) to the model for a node that received x and returned y (FedBuff), or mix the "
        "model w with the reply, (1 - s) w + s y (mix; FedAsync with buffer = 1 and its alpha as server-learning-rate)",
        choices=["difference", "mix"],
    )
    repeat_version: bool = option(
        True, "with mode = async, let a node train again before the next step; if false, it waits while others work"
    )
    node_share: float = option(
        0.75, "with mode = async, the largest share of the last 20 updates of one node", above=0, maximum=1
    )
    max_staleness: int = option(
        0, "with mode = async, refuse updates from models of more steps ago; 0 = never", minimum=0
    )
    over_selection: float = option(
        1.0,
        "ask this number times as many nodes as fraction-train says, and close the round when as many have replied as "
        "would be asked without; 1.3 is usual",
        minimum=1,
        maximum=10,
    )
    deadline: float = option(
        0.0,
        "seconds after which a round closes with the replies that are in, if they are at least min-replies, and an "
        "evaluation by nodes; 0 = at timeout",
        minimum=0,
    )
    late_replies: str = option(
        "drop",
        "drop what arrives after its round has closed, or fold it into the next round with the weight s",
        choices=["drop", "fold"],
    )
    staleness: str = option(
        "polynomial",
        "weight s of an update from the model of t steps ago: (1 + t)^-a, 1 (constant), or 1 up to t = b and then "
        "1 / (a (t - b) + 1) (hinge)",
        choices=["polynomial", "constant", "hinge"],
    )
    staleness_a: float = option(0.0, "a of staleness; 0 = 0.5 for polynomial, 10 for hinge", minimum=0)
    staleness_b: int = option(4, "b of staleness = hinge", minimum=0)

    @property
    def closing(self) -> Closing:
        """When a round closes."""
        late: Any = self.late_replies
        return Closing(self.over_selection, self.deadline or inf, late, self.weights)

    @property
    def weights(self) -> Staleness:
        """The weights of stale updates."""
        kind: Any = self.staleness
        return Staleness(kind, self.staleness_a or _PUBLISHED_A[kind], self.staleness_b)

    def asynchronous(self, training_nodes: int) -> dict[str, Any]:
        """The parameters of :class:`~fedapps.strategies.BufferedAsync` where so many nodes train in a round."""
        concurrency = self.concurrency or training_nodes
        return {
            "concurrency": concurrency,
            "buffer": self.buffer or (concurrency + 1) // 2,
            "mixing": self.async_update == "mix",
            "repeat": self.repeat_version,
            "share": self.node_share,
            "max_staleness": self.max_staleness or None,
        }


_HOUR = 3600.0
_SPEEDS = ("clock_step_seconds", "clock_uplink", "clock_downlink")


@dataclass(frozen=True)
class SimulatedTime:
    """The keys of simulated time, which is on if ``clock_step_seconds`` or ``clock_devices`` is set."""

    clock_step_seconds: str = option(
        "",
        "simulate the time on the devices: seconds of a local step on each node, as a number, uniform(low=0.1,high=1), "
        "lognormal(median=0.5,sigma=1) or fedscale(examples=20), the log-normal of FedScale's code for a step on 20 "
        "examples; empty = no simulated time",
    )
    clock_uplink: str = option(
        "", "Mbit/s of a node's arrays to the server, as for clock-step-seconds; empty = takes no time"
    )
    clock_downlink: str = option("", "Mbit/s from the server to a node; empty = takes no time")
    clock_devices: str = option(
        "",
        "CSV file of devices with the columns device, speed (seconds of a local step), up and down (Mbit/s; empty = "
        "take no time), in place of the three keys above; nodes take the devices in turn, in the order of their keys",
        path=True,
    )
    clock_availability: str = option(
        "",
        "when nodes are on, in hours: day-night(hours=8,spread=24), once a day, beginning within spread hours; "
        "on-off(on=lognormal(median=2,sigma=1),off=uniform(low=1,high=3)); or a CSV file with the columns device, "
        "start and end in seconds, which repeats after its last end; empty = always",
        path=True,
    )
    clock_interrupted: str = option(
        "pause",
        "work of a node that turns off: pause until it is on again, or lose it, which the server learns at once",
        choices=["pause", "lose"],
    )

    @property
    def on(self) -> bool:
        """Whether the run has simulated time."""
        return bool(self.clock_step_seconds or self.clock_devices)


def clock_conflicts(clock: SimulatedTime) -> Iterator[tuple[set[str], str]]:
    """The fields that cannot be used, with messages. Files are not read."""
    if not clock.on:
        idle = [name for name in ("clock_uplink", "clock_downlink", "clock_availability") if getattr(clock, name)]
        if idle:
            yield (
                set(idle),
                f"{', '.join(map(key_of, idle))}: set clock-step-seconds or clock-devices too, which turn on simulated "
                "time",
            )
        return
    if clock.clock_devices and (both := [name for name in _SPEEDS if getattr(clock, name)]):
        yield (
            {"clock_devices", *both},
            f"{', '.join(map(key_of, both))}: must be empty with clock-devices = {clock.clock_devices!r}, which has "
            "the speeds of all devices",
        )
    for name in _SPEEDS:
        try:
            read_distribution(getattr(clock, name))
        except ValueError as error:
            yield {name}, f"{key_of(name)} = {getattr(clock, name)!r}: {error}"
    try:
        read_availability(clock.clock_availability, 1, 0, read_files=False)
    except ValueError as error:
        yield {"clock_availability"}, f"clock-availability = {clock.clock_availability!r}: {error}"


def devices_of(clock: SimulatedTime, count: int, seed: int) -> devices.Devices:
    """The devices of ``count`` nodes.

    Raises
    ------
    ValueError
        A value cannot be used, or a file cannot be read (``DataError``); the message names the key.
    """
    try:
        availability = read_availability(clock.clock_availability, count, derive_seed(seed, "availability"))
    except ValueError as error:
        raise type(error)(f"clock-availability = {clock.clock_availability!r}: {error}") from error
    if clock.clock_devices:
        try:
            return _listed(Path(clock.clock_devices), count, availability)
        except ValueError as error:
            raise type(error)(f"clock-devices = {clock.clock_devices!r}: {error}") from error
    step_seconds, uplink, downlink = (read_distribution(getattr(clock, name)) for name in _SPEEDS)
    assert step_seconds is not None
    return devices.drawn(count, derive_seed(seed, "devices"), step_seconds, uplink, downlink, availability)


def read_distribution(text: str) -> devices.Distribution | None:
    """A number, or a distribution such as ``lognormal(median=0.5,sigma=1)``; ``None`` for an empty text.

    Raises
    ------
    ValueError
        The text is neither, or a parameter is missing, unknown or out of range.
    """
    if not text.strip():
        return None
    try:
        return devices.Constant(float(text))
    except ValueError:
        if _is_number(text):
            raise
    expression = _expression(text)
    if expression.name not in devices.DISTRIBUTIONS:
        raise ValueError(
            f"must be a number or one of {', '.join(devices.DISTRIBUTIONS)}, such as uniform(low=0.1,high=1)"
        )
    kind = devices.DISTRIBUTIONS[expression.name]
    return kind(**_numbers(expression, [field.name for field in fields(kind)]))  # type: ignore[arg-type]


def read_availability(text: str, count: int, seed: int, *, read_files: bool = True) -> devices.Availability:
    """The value of ``clock-availability`` for ``count`` devices; :class:`AlwaysOn` for an unread file.

    Raises
    ------
    ValueError
        The value has another form, or a file cannot be used (``DataError``).
    """
    text = text.strip()
    if not text:
        return devices.AlwaysOn(count)
    if Path(text).suffix and "(" not in text:
        return _trace(Path(text), count) if read_files else devices.AlwaysOn(count)
    expression = _expression(text)
    if expression.name == "day-night":
        return devices.DayNight(count, **_numbers(expression, ["hours", "spread"]), seed=seed)
    if expression.name == "on-off":
        arguments = _arguments(expression, ["on", "off"])
        on, off = (read_distribution(arguments[name]) for name in ("on", "off"))
        if on is None or off is None:
            raise ValueError("on and off must not be empty")
        return devices.OnOff(count, on, off, seed, unit=_HOUR)
    raise ValueError("must be day-night(hours=8,spread=24), on-off(on=2,off=uniform(low=1,high=3)) or a CSV file")


def _listed(path: Path, count: int, availability: devices.Availability) -> devices.Devices:
    table = read_table(path, ("device", "speed", "up", "down"))
    names = table.texts("device")
    if len(set(names)) < len(names):
        raise DataError(f"{path}: a device is listed twice; give each device one row")
    rates = {name: table.numbers(name, missing=np.inf) for name in ("up", "down")}
    return devices.from_table(count, {"speed": table.numbers("speed"), **rates}, availability)


def _trace(path: Path, count: int) -> devices.Trace:
    table = read_table(path, ("device", "start", "end"))
    starts, ends = table.numbers("start"), table.numbers("end")
    intervals: dict[str, list[tuple[float, float]]] = {}
    for row in np.argsort(starts, kind="stable"):
        intervals.setdefault(table.texts("device")[row], []).append((float(starts[row]), float(ends[row])))
    order = dict.fromkeys(table.texts("device"))
    return devices.Trace([intervals[name] for name in order], count)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _expression(text: str) -> Expression:
    try:
        return read_expression(text)
    except ValueError:
        raise ValueError("must be written as name(parameter=value,parameter=value)") from None


def _arguments(expression: Expression, names: list[str]) -> dict[str, str]:
    arguments = dict(expression.arguments)
    if set(arguments) != set(names):
        raise ValueError(f"{expression.name} takes {' and '.join(names)}, not {', '.join(arguments) or 'nothing'}")
    return arguments


def _numbers(expression: Expression, names: list[str]) -> dict[str, float]:
    arguments = _arguments(expression, names)
    if bad := [f"{name} = {text}" for name, text in arguments.items() if not _is_number(text)]:
        raise ValueError(f"{', '.join(bad)}: must be a number")
    return {name: float(text) for name, text in arguments.items()}
