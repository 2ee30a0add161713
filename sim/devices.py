"""The devices of a simulated fleet: how fast each computes, receives and sends, and when it is on.

A device is on always, by day and night, in random intervals, or as a recorded trace says: in half-open intervals
``[start, end)``. Times are seconds since the start of the run. Draws are keyed by counters, so that each is the same in
any order.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, floor, inf
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
_GOLDEN, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def uniforms(seed: int, *counters: ArrayLike) -> Floats:
    """Numbers in (0, 1), one for each element of the broadcast ``counters``, non-negative integers.

    Each is a hash of the seed and its counters with the mixing function of SplitMix64 (Steele, Lea and Flood, Fast
    Splittable Pseudorandom Number Generators, OOPSLA 2014, Figure 17), so that a draw needs no state.
    """
    mixed = np.atleast_1d(np.asarray(seed % 2**64, np.uint64))
    with np.errstate(over="ignore"):
        for counter in counters:
            mixed = mixed + _GOLDEN * (np.atleast_1d(np.asarray(counter)).astype(np.uint64) + np.uint64(1))
            mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
            mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
            mixed = mixed ^ (mixed >> np.uint64(31))
    return ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


class Distribution(ABC):
    """A distribution of positive numbers. Its fields are the parameters that a run config can set."""

    name: ClassVar[str]
    #: The parameter that can be 0; all others are above.
    can_be_zero: ClassVar[str] = ""

    @abstractmethod
    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        """One number > 0 for each element of the broadcast ``counters``; see :func:`uniforms`."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value, least = getattr(self, field.name), "at least" if field.name == self.can_be_zero else "above"
            if not 0 <= value < inf or (value == 0 and least == "above"):
                raise ValueError(f"{field.name} = {value:g}: must be {least} 0 and finite")


@dataclass(frozen=True)
class Constant(Distribution):
    """The same ``value`` > 0 for all."""

    name = "constant"
    value: float

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return np.full(uniforms(seed, *counters).shape, self.value)


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform between ``low`` > 0 and ``high`` ≥ ``low``."""

    name = "uniform"
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < inf:
            raise ValueError(f"low = {self.low:g}, high = {self.high:g}: must be 0 < low <= high")

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return self.low + (self.high - self.low) * uniforms(seed, *counters)


@dataclass(frozen=True)
class LogNormal(Distribution):
    """``median`` > 0 times exp(``sigma`` z) with a standard normal z; a large ``sigma`` gives a heavy tail."""

    name = "lognormal"
    can_be_zero = "sigma"
    median: float
    sigma: float

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        radius = np.sqrt(-2.0 * np.log(uniforms(seed, *counters, 0)))  # Box and Muller 1958
        return self.median * np.exp(self.sigma * radius * np.cos(2 * np.pi * uniforms(seed, *counters, 1)))


@dataclass(frozen=True)
class FedScale(Distribution):
    """Seconds of a step on ``examples`` examples as in FedScale: each takes 0.005 s times log-normal(μ = 1, σ = 0.6).

    The parameters are the defaults of ``ClientMetadata.get_completion_time_lognormal`` in the code of FedScale
    (Lai et al., ICML 2022; fedscale/cloud/internal/client_metadata.py). FedScale draws anew for each task, this class
    once for each device.
    """

    name = "fedscale"
    examples: float

    def draw(self, seed: int, *counters: ArrayLike) -> Floats:
        return LogNormal(0.005 * exp(1.0) * self.examples, 0.6).draw(seed, *counters)


#: The distributions by the names that a run config uses.
DISTRIBUTIONS: dict[str, type[Distribution]] = {kind.name: kind for kind in (Constant, Uniform, LogNormal, FedScale)}
DAY = 86400.0
#: A point from which the intervals of a device can be found: the number of a cycle, and when it starts.
Mark = tuple[int, float]


@dataclass(frozen=True)
class Finish:
    """When a device has done its work, or when it went off and lost it."""

    time: float
    lost: bool = False


class Availability(ABC):
    """When each of ``count`` devices is on; devices are numbered from 0."""

    def __init__(self, count: int) -> None:
        self.count = count

    @abstractmethod
    def interval(self, device: int, time: float, mark: Mark | None = None) -> tuple[float, float]:
        """The first interval in which the device is on that ends after ``time``; ``(inf, inf)`` if there is none.

        ``time`` must not be before the last call of :meth:`on` or, with a ``mark``, before the one before the mark.
        """

    def mark(self, device: int) -> Mark | None:
        """What :meth:`interval` needs to look back later at intervals of a device from the present time on."""
        return None

    @abstractmethod
    def on(self, time: float) -> NDArray[np.bool_]:
        """Which devices are on, ``[count]``. From call to call, ``time`` must not decrease."""

    @abstractmethod
    def next_start(self, time: float) -> float:
        """The first time after ``time`` at which a device turns on; ``inf`` if there is none."""

    def finish(self, device: int, start: float, seconds: float, *, lost: bool, mark: Mark | None = None) -> Finish:
        """When a device that gets work at ``start`` has done it, if it takes ``seconds`` in which the device is on.

        Parameters
        ----------
        device : int
        start : float
            A device that is off begins when it turns on.
        seconds : float
            ≥ 0.
        lost : bool
            Whether work is lost when the device turns off, at the end of the interval; otherwise it pauses.
        mark : Mark, optional
            What :meth:`mark` returned at ``start`` or before; see :meth:`interval`.
        """
        while True:
            begin, end = self.interval(device, start, mark)
            begin = max(begin, start)
            if begin == inf:
                return Finish(inf)
            if begin + seconds <= end:
                return Finish(begin + seconds)
            if lost:
                return Finish(end, lost=True)
            seconds -= end - begin
            start = end


class AlwaysOn(Availability):
    """All devices are always on."""

    def interval(self, device: int, time: float, mark: Mark | None = None) -> tuple[float, float]:
        return 0.0, inf

    def on(self, time: float) -> NDArray[np.bool_]:
        return np.ones(self.count, np.bool_)

    def next_start(self, time: float) -> float:
        return inf


class DayNight(Availability):
    """Each device is on once a day for ``hours``, from its own time of day on.

    Parameters
    ----------
    count : int
    hours : float
        Above 0 and below 24, hours a day.
    spread : float
        From 0 to 24: the devices turn on within this number of hours, evenly distributed. With 24, about as many
        devices are on at any time, as in a fleet over all time zones.
    seed : int
    """

    def __init__(self, count: int, hours: float, spread: float, seed: int) -> None:
        if not 0 < hours < 24:
            raise ValueError(f"hours = {hours:g}: must be above 0 and below 24")
        if not 0 <= spread <= 24:
            raise ValueError(f"spread = {spread:g}: must be at least 0 and at most 24")
        super().__init__(count)
        self._length = hours * 3600
        self._starts = uniforms(seed, np.arange(count)) * spread * 3600

    def interval(self, device: int, time: float, mark: Mark | None = None) -> tuple[float, float]:
        start = float(self._last_starts(time)[device])
        if time >= start + self._length:
            start += DAY
        return start, start + self._length

    def on(self, time: float) -> NDArray[np.bool_]:
        return np.asarray(time < self._last_starts(time) + self._length)

    def next_start(self, time: float) -> float:
        return float(np.min(self._last_starts(time))) + DAY

    def _last_starts(self, time: float) -> Floats:
        """When each device turned on last, ``[count]``, up to a day ago."""
        starts = self._starts + DAY * np.floor((time - self._starts) / DAY)
        return np.where(starts > time, starts - DAY, np.where(starts + DAY <= time, starts + DAY, starts))


class OnOff(Availability):
    """Devices turn on and off again and again, for durations that are drawn when they are needed.

    A cycle is a time on and a time off. At the start of the run, each device is at a uniformly drawn point of its first
    cycle.

    Parameters
    ----------
    count : int
    on_time, off_time : Distribution
        In units of ``unit``.
    seed : int
    unit : float
        Seconds, above 0.
    """

    def __init__(self, count: int, on_time: Distribution, off_time: Distribution, seed: int, unit: float = 1.0) -> None:
        super().__init__(count)
        self._on_time, self._off_time, self._seed, self._unit = on_time, off_time, seed, unit
        self._cycle = np.zeros(count, np.int64)
        devices = np.arange(count)
        lengths, pauses = self._durations(devices, self._cycle)
        self._start = -uniforms(seed, devices, 2**40) * (lengths + pauses)
        self._off_at = self._start + lengths
        self._next = self._start + lengths + pauses

    def interval(self, device: int, time: float, mark: Mark | None = None) -> tuple[float, float]:
        cycle, start = mark or (int(self._cycle[device]), float(self._start[device]))
        while True:
            length, pause = (float(d[0]) for d in self._durations(np.array([device]), np.array([cycle])))
            if time < start + length:
                return start, start + length
            cycle, start = cycle + 1, start + length + pause

    def mark(self, device: int) -> Mark | None:
        return int(self._cycle[device]), float(self._start[device])

    def on(self, time: float) -> NDArray[np.bool_]:
        self._advance(time)
        return np.asarray(time < self._off_at)

    def next_start(self, time: float) -> float:
        self._advance(time)
        return float(np.min(self._next))

    def _advance(self, time: float) -> None:
        """Move all devices to the cycle of ``time``."""
        while (late := np.flatnonzero(self._next <= time)).size:
            self._cycle[late] += 1
            lengths, pauses = self._durations(late, self._cycle[late])
            self._start[late] = self._next[late]
            self._off_at[late] = self._start[late] + lengths
            self._next[late] = self._start[late] + lengths + pauses

    def _durations(self, devices: NDArray[np.int64], cycles: NDArray[np.int64]) -> tuple[Floats, Floats]:
        return (
            self._unit * self._on_time.draw(self._seed, devices, cycles, 0),
            self._unit * self._off_time.draw(self._seed, devices, cycles, 1),
        )


class Trace(Availability):
    """Recorded intervals, which repeat after the last end among all devices, as FedScale repeats its trace.

    Parameters
    ----------
    intervals : sequence of sequences of (start, end)
        Of each device of the trace, in seconds, sorted and without overlap. Device i of the run has those of device
        i modulo their number.
    count : int
        The number of devices of the run.

    Raises
    ------
    ValueError
        An interval does not end after its start, begins before 0, or overlaps the one before.
    """

    def __init__(self, intervals: Sequence[Sequence[tuple[float, float]]], count: int) -> None:
        super().__init__(count)
        for number, of_device in enumerate(intervals):
            last = 0.0
            for start, end in of_device:
                if not last <= start < end < inf:
                    raise ValueError(
                        f"device {number}: the interval from {start:g} to {end:g} must end after its start, and begin "
                        f"at {last:g} or later, where the one before ends"
                    )
                last = end
        flat = [(device, *pair) for device, of_device in enumerate(intervals) for pair in of_device]
        if not flat:
            raise ValueError("the trace has no interval")
        self._device = np.array([row[0] for row in flat])
        self._starts = np.array([row[1] for row in flat], np.float64)
        self._ends = np.array([row[2] for row in flat], np.float64)
        self._first = np.searchsorted(self._device, np.arange(len(intervals) + 1))
        self._all_starts = np.unique(self._starts)
        self._period = float(self._ends.max())
        self._of_device = np.arange(count) % len(intervals)

    def interval(self, device: int, time: float, mark: Mark | None = None) -> tuple[float, float]:
        low, high = self._first[self._of_device[device] : self._of_device[device] + 2]
        if low == high:
            return inf, inf
        begun = self._period * floor(time / self._period)
        index = low + int(np.searchsorted(begun + self._ends[low:high], time, side="right"))
        if index == high:
            begun, index = begun + self._period, low
        return begun + float(self._starts[index]), begun + float(self._ends[index])

    def on(self, time: float) -> NDArray[np.bool_]:
        begun = self._period * floor(time / self._period)
        inside = (begun + self._starts <= time) & (time < begun + self._ends)
        on = np.zeros(len(self._first) - 1, np.bool_)
        on[self._device[inside]] = True
        return on[self._of_device]

    def next_start(self, time: float) -> float:
        begun = self._period * floor(time / self._period)
        index = int(np.searchsorted(begun + self._all_starts, time, side="right"))
        if index == len(self._all_starts):
            begun, index = begun + self._period, 0
        return begun + float(self._all_starts[index])


#: Bytes per second of one Mbit/s.
MEGABIT = 125_000.0


@dataclass(frozen=True)
class Devices:
    """Devices, numbered from 0. Their state is all that a clock keeps of a node that has no message.

    Parameters
    ----------
    step_seconds : array [n]
        ≥ 0, seconds of a local step.
    uplink, downlink : array [n]
        Above 0, bytes per second; ``inf`` for transfers that take no time.
    availability : Availability
        When each of the n devices is on.
    """

    step_seconds: Floats
    uplink: Floats
    downlink: Floats
    availability: Availability

    def __post_init__(self) -> None:
        for name, values, allowed, range_name in (
            ("step_seconds", self.step_seconds, self.step_seconds >= 0, "at least 0"),
            ("uplink", self.uplink, self.uplink > 0, "above 0"),
            ("downlink", self.downlink, self.downlink > 0, "above 0"),
        ):
            if values.shape != (self.count,):
                raise ValueError(f"{name} has shape {values.shape}: must be ({self.count},), one for each device")
            if not allowed.all():
                device = int(np.argmin(allowed))
                raise ValueError(f"{name} of device {device} is {values[device]:g}: must be {range_name}")

    @property
    def count(self) -> int:
        """How many devices there are."""
        return self.availability.count

    def seconds(self, device: int, received: int, steps: float, sent: int) -> float:
        """Seconds that a device needs to receive and send these bytes, and for these local steps in between."""
        transfers = received / self.downlink[device] + sent / self.uplink[device]
        return float(transfers + steps * self.step_seconds[device])


def drawn(
    count: int,
    seed: int,
    step_seconds: Distribution,
    uplink: Distribution | None = None,
    downlink: Distribution | None = None,
    availability: Availability | None = None,
) -> Devices:
    """Devices with drawn speeds: seconds of a step, and Mbit/s of both directions; ``None`` takes no time."""
    numbers = np.arange(count)

    def rates(distribution: Distribution | None, purpose: int) -> Floats:
        return distribution.draw(seed, numbers, purpose) * MEGABIT if distribution else np.full(count, np.inf)

    return Devices(
        step_seconds.draw(seed, numbers, 0), rates(uplink, 1), rates(downlink, 2), availability or AlwaysOn(count)
    )


def from_table(count: int, columns: Mapping[str, Floats], availability: Availability | None = None) -> Devices:
    """Devices of a table with the columns ``speed`` (seconds of a step), ``up`` and ``down`` (Mbit/s).

    Device i has row i modulo the number of rows.
    """
    rows = np.arange(count) % len(columns["speed"])
    up, down = (columns[name][rows] * MEGABIT for name in ("up", "down"))
    return Devices(columns["speed"][rows], up, down, availability or AlwaysOn(count))
