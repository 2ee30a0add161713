"""Simulated devices: distributions that need no state, and when devices are on."""

import tracemalloc

import numpy as np
import pytest
from fedapps.sim.devices import (
    DAY,
    AlwaysOn,
    Availability,
    Constant,
    DayNight,
    Devices,
    FedScale,
    LogNormal,
    OnOff,
    Trace,
    Uniform,
    drawn,
    from_table,
    uniforms,
)
from hypothesis import given, settings
from hypothesis import strategies as st

HOUR = 3600.0


def availabilities() -> st.SearchStrategy[Availability]:
    gaps = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=4)
    trace = st.lists(gaps, min_size=1, max_size=4).map(lambda devices: Trace([_intervals(own) for own in devices], 4))
    lengths = st.floats(0.5, 50)
    on_off = st.builds(
        lambda seed, on, off: OnOff(4, Uniform(on, 2 * on), LogNormal(off, 1.0), seed),
        st.integers(0, 99),
        lengths,
        lengths,
    )
    day = st.builds(
        lambda hours, spread, seed: DayNight(4, hours, spread, seed),
        lengths.map(lambda h: h % 23 + 0.5),
        st.floats(0, 24),
        st.integers(0, 99),
    )
    return st.one_of(trace, on_off, day, st.just(AlwaysOn(4)))


def _intervals(gaps):
    found, at = [], 0
    for pause, length in gaps:
        found.append((float(at + pause), float(at + pause + length)))
        at += pause + length
    return found


# -- distributions ---------------------------------------------------------------------------------------------


def test_a_draw_depends_on_its_counters_alone():
    together = uniforms(7, np.arange(1000), 3)
    assert [uniforms(7, device, 3)[0] for device in (0, 17, 999)] == together[[0, 17, 999]].tolist()
    assert len(np.unique(together)) == 1000
    assert not np.array_equal(together, uniforms(8, np.arange(1000), 3))
    assert not np.array_equal(together, uniforms(7, np.arange(1000), 4))


def test_distributions_have_their_moments():
    devices = np.arange(200_000)
    unit = uniforms(1, devices)
    assert unit.min() > 0
    assert unit.max() < 1
    assert np.mean(unit) == pytest.approx(0.5, abs=0.005)
    assert np.var(unit) == pytest.approx(1 / 12, abs=0.002)
    speeds = np.log(LogNormal(3.0, 0.6).draw(1, devices))
    assert np.mean(speeds) == pytest.approx(np.log(3.0), abs=0.01)
    assert np.std(speeds) == pytest.approx(0.6, abs=0.01)
    assert np.median(FedScale(20).draw(1, devices)) == pytest.approx(20 * 0.005 * np.e, rel=0.01)
    spread = Uniform(2.0, 6.0).draw(1, devices)
    assert (spread.min(), spread.max()) == pytest.approx((2.0, 6.0), abs=0.001)
    assert Constant(4.0).draw(1, devices[:2]).tolist() == [4.0, 4.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Uniform(0, 1), "low = 0, high = 1: must be 0 < low <= high"),
        (lambda: LogNormal(0, 1), "median = 0: must be above 0"),
        (lambda: LogNormal(1, -1), "sigma = -1: must be at least 0"),
        (lambda: Constant(0), "value = 0: must be above 0"),
        (lambda: DayNight(1, 24, 0, 0), "hours = 24: must be above 0 and below 24"),
        (lambda: Trace([[(0, 5), (4, 6)]], 1), "device 0: the interval from 4 to 6 must .* begin at 5 or later"),
        (lambda: Trace([[]], 1), "the trace has no interval"),
        (lambda: drawn(2, 0, Constant(1), availability=AlwaysOn(3)), "step_seconds has shape .2,.: must be .3,."),
    ],
)
def test_parameters_that_cannot_be_used(make, said):
    with pytest.raises(ValueError, match=said):
        make()


# -- availability ----------------------------------------------------------------------------------------------


def test_a_trace_by_hand():
    """Two devices, a period of 10 s: the first is on in [1, 3) and [6, 10), the second in [2, 4)."""
    trace = Trace([[(1, 3), (6, 10)], [(2, 4)]], 3)  # the third device has the intervals of the first
    times = [0, 1, 2, 3, 4, 9.5, 10, 11, 12]
    assert [trace.on(t).tolist() for t in times] == [
        [False, False, False], [True, False, True], [True, True, True], [False, True, False], [False, False, False],
        [True, False, True], [False, False, False], [True, False, True], [True, True, True],
    ]  # fmt: skip
    assert [trace.interval(0, t) for t in (0, 2, 3, 10, 13)] == [(1, 3), (1, 3), (6, 10), (11, 13), (16, 20)]
    assert [trace.interval(1, t) for t in (3, 4)] == [(2, 4), (12, 14)]
    assert [trace.next_start(t) for t in (0, 1, 2, 6, 19)] == [1, 2, 6, 11, 21]


def test_work_pauses_while_a_device_is_off_or_is_lost():
    trace = Trace([[(1, 3), (6, 10)]], 1)
    assert trace.finish(0, 0, 2, lost=False).time == 3
    assert trace.finish(0, 0, 3, lost=False).time == 7  # 2 s in [1, 3), 1 s from 6 on
    assert trace.finish(0, 9, 4, lost=False).time == 17  # 1 s, then 2 s in [11, 13), and 1 s from 16 on
    lost = trace.finish(0, 0, 3, lost=True)
    assert (lost.time, lost.lost) == (3, True)
    kept = trace.finish(0, 5, 4, lost=True)
    assert (kept.time, kept.lost) == (10, False)


def test_by_day_and_night_each_device_is_on_once_a_day():
    devices = DayNight(5000, 6, 24, seed=3)
    shares = [devices.on(hour * HOUR).mean() for hour in range(48)]
    assert all(abs(share - 0.25) < 0.03 for share in shares)
    start, end = devices.interval(7, 3 * DAY)
    assert end - start == pytest.approx(6 * HOUR)
    assert devices.interval(7, end)[0] == pytest.approx(start + DAY)
    together = DayNight(50, 6, 0, seed=3)
    assert [int(together.on(t).sum()) for t in (0, 5 * HOUR, 7 * HOUR, 23 * HOUR, 24 * HOUR)] == [50, 50, 0, 0, 50]


@given(availabilities(), st.lists(st.floats(0, 3000), min_size=1, max_size=12), st.floats(0, 400))
@settings(max_examples=60)
def test_intervals_and_the_set_of_devices_that_are_on_agree(found, times, ahead):
    for time in sorted(times):
        on = found.on(time)
        for device in range(found.count):
            start, end = found.interval(device, time)
            assert start < end or start == np.inf
            assert end > time
            assert on[device] == (start <= time)
            assert found.interval(device, time + ahead)[1] > time + ahead
        following = found.next_start(time)
        assert following > time
        starts = [found.interval(device, time)[0] for device in range(found.count)]
        assert all(start <= time or start >= following for start in starts)


@given(availabilities(), st.floats(0, 500), st.floats(0, 60), st.floats(0, 60))
@settings(max_examples=60)
def test_work_takes_the_time_in_which_the_device_is_on(found, start, seconds, more):
    for device in range(found.count):
        first = found.finish(device, start, seconds, lost=False).time
        assert first >= start + seconds or first == pytest.approx(start + seconds)
        whole = found.finish(device, start, seconds + more, lost=False).time
        assert whole >= first
        assert found.finish(device, first, more, lost=False).time == pytest.approx(whole, abs=1e-6)
        lost = found.finish(device, start, seconds, lost=True)
        assert lost.time <= first or lost.time == pytest.approx(first)


# -- a fleet ---------------------------------------------------------------------------------------------------


def test_seconds_of_a_piece_of_work_by_hand():
    devices = from_table(
        3, {name: np.array(row) for name, row in (("speed", [0.5, 2.0]), ("up", [1.0, 8.0]), ("down", [4.0, 8.0]))}
    )
    assert devices.seconds(0, 1_000_000, 10, 250_000) == 2 + 5 + 2  # 4 Mbit/s are 500,000 bytes/s
    assert devices.seconds(1, 1_000_000, 10, 250_000) == 1 + 20 + 0.25
    assert devices.seconds(2, 0, 1, 0) == 0.5
    assert drawn(2, 0, Constant(1)).seconds(1, 10**9, 3, 10**9) == 3  # without rates, transfers take no time


def test_the_memory_of_many_devices_is_that_of_their_state():
    count = 100_000
    tracemalloc.start()
    on_off = OnOff(count, LogNormal(HOUR, 1), LogNormal(2 * HOUR, 1), seed=0)
    devices: Devices = drawn(count, 0, LogNormal(0.1, 1), LogNormal(5, 1), LogNormal(20, 1), on_off)
    state, _ = tracemalloc.get_traced_memory()
    for day in range(7):
        on_off.on(day * DAY)
        devices.availability.finish(day, day * DAY, 5 * HOUR, lost=False)
    later, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert state < 8 * 8 * count  # three arrays of speeds, four of the trace
    assert later < state + 8 * count
