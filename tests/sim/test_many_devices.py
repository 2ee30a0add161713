"""The memory of a fleet in simulated time: a few hundred bytes for a device that is idle."""

import gc
import tracemalloc

import numpy as np
import pytest
from fedapps.sim.clock_grid import ClockGrid, Reading
from fedapps.sim.devices import Devices, LogNormal, Trace, drawn
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import BaseStrategy, BufferedAsync, TooFewRepliesError, UniformFraction, to_record
from fedapps.strategies.wire import KEY, PROFILE, PROFILE_QUERY

from benchmarks.growth import echo

pytestmark = pytest.mark.usefixtures("flower_identity")
MODEL = to_record({"w": np.zeros(20_000, np.float32)})
READING = Reading(PROFILE_QUERY, key=lambda r: str(r.content[PROFILE][KEY]), steps=lambda _: 5.0, size=lambda _: 0)


def held(devices):
    """Bytes that are held after some steps of a run with ten nodes at work."""
    tracemalloc.start()
    try:
        keys = {f"key-{number}": "a value" for number in range(300)}  # a run config
        nodes = InProcessGrid(echo(), [{}] * devices, keys)
        grid = ClockGrid(nodes, drawn(devices, 0, LogNormal(1.0, 1.5)), READING)
        strategy = BufferedAsync(concurrency=10, buffer=5, evaluate_sampler=UniformFraction(0.0), profiles=True)
        strategy.start(grid, MODEL, num_rounds=4, evaluate_every=4)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_an_idle_device_takes_a_few_hundred_bytes():
    held(10)  # what is loaded once
    few, many = held(50), held(250)
    assert (many - few) / 200 < 1500, "a profile, its key, and the device; no run config and no copy of the model"


def test_a_run_whose_nodes_are_never_on_together_ends():
    rates = np.ones(2)
    devices = Devices(rates, rates, rates, Trace([[(0, 12 * 3600)], [(12 * 3600, 24 * 3600)]], 2))
    grid = ClockGrid(InProcessGrid(echo(), [{}] * 2, {}), devices, READING)
    with pytest.raises(TooFewRepliesError, match=r"1 nodes can train, but min_replies is 2 .* at a time for a week"):
        BaseStrategy(min_replies=2, profiles=True).start(grid, MODEL, num_rounds=1)
    assert 7 * 86_400 < grid.now() < 8 * 86_400
