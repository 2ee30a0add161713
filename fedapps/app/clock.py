"""The grid of a run with simulated time, and what is recorded of its devices."""

import csv
import io
from math import inf
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedapps.base.atomic import write_whole
from fedapps.config.clock import devices_of
from fedapps.config.run_config import RunConfig
from fedapps.report.run_data import DEVICES
from fedapps.sim.clock_grid import ClockGrid, Reading
from fedapps.sim.devices import MEGABIT, Devices
from fedapps.strategies.wire import KEY, PROFILE, PROFILE_QUERY, STEPS


def with_clock(grid: Grid, run: RunConfig) -> Grid:
    """The grid itself, or with simulated time that begins now, as the keys ``clock-*`` say.

    Raises
    ------
    ValueError
        As :func:`~fedapps.config.clock.devices_of`.
    """
    if not run.clock.on:
        return grid
    devices = devices_of(run.clock, run.num_nodes, run.seed)
    reading = Reading(PROFILE_QUERY, key=_key, steps=_steps, size=_size)
    return ClockGrid(grid, devices, reading, lost=run.clock.clock_interrupted == "lose")


def write_devices(folder: Path, grid: Grid) -> None:
    """Write the device of each node, once its nodes have been asked for their keys."""
    if not isinstance(grid, ClockGrid):
        return
    numbers, devices = grid.devices_by_key(), grid.devices
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    writer.writerow(["device", "speed", "up", "down"])
    writer.writerows([key, *_row(devices, number)] for key, number in numbers.items())
    write_whole(folder / DEVICES, rows.getvalue().encode())


def _row(devices: Devices, number: int) -> list[float | str]:
    rates = (float(rate[number]) / MEGABIT for rate in (devices.uplink, devices.downlink))
    return [float(devices.step_seconds[number]), *("" if rate == inf else rate for rate in rates)]


def _key(reply: Message) -> str:
    record = reply.content.get(PROFILE)
    return str(record.get(KEY, "")) if isinstance(record, ConfigRecord) else ""


def _size(content: RecordDict) -> int:
    """The bytes of the arrays; those of the config depend on the name of the run and on how often it was resumed."""
    return sum(record.count_bytes() for record in content.values() if isinstance(record, ArrayRecord))


def _steps(reply: Message) -> float | None:
    record = next((record for record in reply.content.values() if isinstance(record, MetricRecord)), MetricRecord())
    stated = record.get(STEPS)
    return float(stated) if isinstance(stated, int | float) and 0 <= stated < inf else None
