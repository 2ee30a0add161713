"""When devices are on: always, by day and night, in random intervals, or as a recorded trace says.

Times are seconds since the start of the run. A device is on in half-open intervals ``[start, end)``.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

import numpy as np
from numpy.typing import NDArray

from .distributions import Distribution, Floats, uniforms

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
        Seconds.
    seed : int
    """

    def __init__(self, count: int, on_time: Distribution, off_time: Distribution, seed: int) -> None:
        super().__init__(count)
        self._on_time, self._off_time, self._seed = on_time, off_time, seed
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
            self._on_time.draw(self._seed, devices, cycles, 0),
            self._off_time.draw(self._seed, devices, cycles, 1),
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
