"""The devices of a simulated fleet: how fast each computes, receives and sends, and when it is on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .availability import AlwaysOn, Availability
from .distributions import Distribution, Floats

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


def fleet_of_columns(count: int, columns: Mapping[str, Floats], availability: Availability | None = None) -> Devices:
    """Devices of a table with the columns ``speed`` (seconds of a step), ``up`` and ``down`` (Mbit/s).

    Device i has row i modulo the number of rows.
    """
    rows = np.arange(count) % len(columns["speed"])
    up, down = (columns[name][rows] * MEGABIT for name in ("up", "down"))
    return Devices(columns["speed"][rows], up, down, availability or AlwaysOn(count))
