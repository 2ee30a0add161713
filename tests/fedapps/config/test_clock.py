"""The keys of simulated time: what they describe, and errors before the run."""

import numpy as np
import pytest
from fedapps.sim.devices import AlwaysOn, DayNight, OnOff, Trace
from small_runs import LQR

from fedapps.config.clock import SimulatedTime, devices_of
from fedapps.config.parsing import ConfigError, parse

SPEEDS = "device,speed,up,down\nphone,0.5,1,4\nrobot,2,8,\n"


def written(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def test_without_its_keys_a_run_has_no_simulated_time():
    assert not parse(LQR).run.clock.on


def test_drawn_devices_do_not_depend_on_their_number():
    clock = SimulatedTime("lognormal(median=0.5, sigma=1)", "uniform(low=1,high=2)", "8")
    few, many = devices_of(clock, 3, seed=1), devices_of(clock, 50, seed=1)
    assert few.step_seconds.tolist() == many.step_seconds[:3].tolist()
    assert (few.downlink == 1e6).all()
    assert ((few.uplink >= 125_000) & (few.uplink <= 250_000)).all()
    assert isinstance(few.availability, AlwaysOn)
    assert devices_of(clock, 3, seed=2).step_seconds.tolist() != few.step_seconds.tolist()


def test_nodes_take_the_devices_of_a_file_in_turn(tmp_path):
    trace = written(tmp_path, "trace.csv", "device,start,end\nb,5,9\na,0,3\nb,1,2\n")
    clock = SimulatedTime(clock_devices=written(tmp_path, "speeds.csv", SPEEDS), clock_availability=trace)
    devices = devices_of(clock, 3, seed=0)
    assert devices.step_seconds.tolist() == [0.5, 2, 0.5]
    assert devices.uplink.tolist() == [125_000, 1_000_000, 125_000]
    assert devices.downlink.tolist() == [500_000, np.inf, 500_000]
    assert isinstance(devices.availability, Trace)
    assert [devices.availability.interval(device, 0) for device in range(3)] == [(1, 2), (0, 3), (1, 2)]


def test_availability_is_in_hours():
    days = devices_of(SimulatedTime("1", clock_availability="day-night(hours=8,spread=0)"), 2, 0).availability
    assert isinstance(days, DayNight)
    assert days.interval(1, 0) == (0, 8 * 3600)
    often = devices_of(
        SimulatedTime("1", clock_availability="on-off(on=2,off=uniform(low=1,high=3))"), 9, 0
    ).availability
    assert isinstance(often, OnOff)
    start, end = often.interval(0, 0)
    assert end - start == pytest.approx(2 * 3600)
    assert 3600 <= often.interval(0, end)[0] - end <= 3 * 3600


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"clock-uplink": "8"}, "clock-uplink: set clock-step-seconds or clock-devices too"),
        ({"clock-step-seconds": "0"}, "clock-step-seconds = '0': value = 0: must be above 0"),
        ({"clock-step-seconds": "pareto(a=1)"}, "must be a number or one of constant, uniform, lognormal, fedscale"),
        ({"clock-step-seconds": "uniform(low=1)"}, "uniform takes low and high, not low"),
        ({"clock-step-seconds": "uniform(low=1,high=x)"}, "high = x: must be a number"),
        ({"clock-step-seconds": "1", "clock-uplink": "-3"}, "clock-uplink = '-3': value = -3: must be above 0"),
        ({"clock-step-seconds": "1", "clock-availability": "often"}, "must be day-night.* or a CSV file"),
        ({"clock-step-seconds": "1", "clock-availability": "on-off(on=2)"}, "on-off takes on and off, not on"),
        ({"clock-step-seconds": "1", "clock-devices": "d.csv"}, "clock-step-seconds: must be empty with clock-devices"),
        ({"clock-interrupted": "stop"}, "clock-interrupted = 'stop': must be one of 'pause', 'lose'"),
    ],
)
def test_values_that_cannot_be_used(given, said):
    with pytest.raises(ConfigError, match=said):
        parse(LQR | given)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("clock_devices", "device,speed,up\na,1,1\n", "clock-devices = .*down"),
        ("clock_devices", "device,speed,up,down\na,1,1,1\na,2,2,2\n", "clock-devices = .*a device is listed twice"),
        ("clock_devices", "device,speed,up,down\na,-1,1,1\n", "step_seconds of device 0 is -1: must be at least 0"),
        (
            "clock_availability",
            "device,start,end\na,3,2\n",
            "clock-availability = .*: device 0: the interval from 3 to 2",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path, name, text, said):
    given = {"clock_step_seconds": "1"} if name == "clock_availability" else {}
    with pytest.raises(ValueError, match=said):
        devices_of(SimulatedTime(**given, **{name: written(tmp_path, "file.csv", text)}), 2, 0)
