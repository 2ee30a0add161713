"""The keys of simulated time: what they describe, and errors before the run."""

import numpy as np
import pytest
from fedapps.sim.devices import AlwaysOn, DayNight, OnOff, Trace
from fedapps.strategies import BaseStrategy, BufferedAsync, Closing, SpeedTiers, Staleness, Utility
from small_runs import LQR

from fedapps.app.strategy import build_strategy
from fedapps.config.clock import SimulatedTime, devices_of
from fedapps.config.pace_conflicts import pace_conflicts
from fedapps.config.parsing import ConfigError, parse
from fedapps.launch.launch import check_engine
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method, method_names

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


# The keys of the pace: what they make of a strategy, and what they cannot be combined with.


RUN = {"task": "lqr", "num-nodes": 7, "collect-after": 0, "methods": "fedavg"}


def strategy_of(label="fedavg", **keys):
    given = RUN | {key.replace("_", "-"): value for key, value in keys.items()}
    return build_strategy(parse(given), label)


def test_a_run_waits_for_its_nodes_by_default():
    strategy = strategy_of()
    assert type(strategy) is BaseStrategy
    assert not strategy.closing.early


def test_the_keys_of_rounds_that_close_early():
    strategy = strategy_of(over_selection=1.3, fraction_train=0.5, deadline=60, late_replies="fold", staleness="hinge")
    assert strategy.closing == Closing(1.3, 60.0, "fold", Staleness("hinge", 10.0, 4))


def test_the_keys_of_an_asynchronous_run():
    strategy = strategy_of(mode="async")
    assert isinstance(strategy, BufferedAsync)
    assert (strategy.concurrency, strategy.buffer, strategy.staleness) == (7, 4, Staleness("polynomial", 0.5))
    strategy = strategy_of(
        mode="async", concurrency=5, buffer=2, async_update="mix", repeat_version=False, max_staleness=9,
        staleness="polynomial", staleness_a=1.0, server_learning_rate=0.6, fraction_train=0.5,
    )  # fmt: skip
    assert (strategy.concurrency, strategy.buffer, strategy.mixing, strategy.repeat) == (5, 2, True, False)
    assert (strategy.max_staleness, strategy.staleness.a) == (9, 1.0)


def test_methods_of_a_run_may_differ_in_pace():
    methods = "fedavg,fedavg(run.mode=async,run.buffer=2),fedprox(run.deadline=9.0)"
    labels = list(parse(RUN | {"methods": methods}).methods)
    kinds = [type(strategy_of(label, methods=methods)) for label in labels]
    assert kinds == [BaseStrategy, BufferedAsync, BaseStrategy]


def test_a_fleet_needs_a_deadline_for_evaluations_that_wait_for_no_sleeper():
    methods = "fedavg,fedavg(run.mode=async)"
    with pytest.raises(ValueError, match="deadline = 0: must be above 0 on a fleet with mode = 'async'"):
        parse(RUN | {"methods": methods}).check_real_nodes()
    parse(RUN | {"methods": methods, "deadline": 30.0}).check_real_nodes()


def test_simulated_nodes_are_chosen_by_their_speed_in_simulated_time_alone():
    given = RUN | {"sampling": "tiers"}
    with pytest.raises(ValueError, match="sampling = 'tiers': needs clock-step-seconds or clock-devices"):
        check_engine("inline", parse(given).run)
    check_engine("inline", parse(given | {"clock-step-seconds": "1"}).run)
    parse(given).check_real_nodes()


def test_samplers_that_learn_from_replies():
    assert strategy_of(sampling="tiers", fraction_train=0.5).sampler == SpeedTiers(0.5)
    assert strategy_of(sampling="utility", mode="async", seed=3).sampler == Utility(1.0, 3)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mode": "async", "dp": "local"}, "dp: must be 'none' with mode = 'async', because a fast node"),
        ({"mode": "async", "aggregation": "median"}, "aggregation: must be 'mean' with mode = 'async'"),
        ({"mode": "async", "sampling": "poisson"}, "sampling: must be 'fixed' with mode = 'async'"),
        ({"mode": "async", "in-flight": 3}, "in-flight: must be 0 with mode = 'async'"),
        ({"mode": "async", "drop-nodes": True}, "drop-nodes: must be false with mode = 'async'"),
        ({"mode": "async", "over-selection": 1.3}, "over-selection: must be 1 with mode = 'async'"),
        ({"mode": "async", "late-replies": "fold"}, "late-replies: must be 'drop' with mode = 'async'"),
        ({"mode": "async", "collect-after": 6}, "collect-after: must be 0 with mode = 'async'"),
        ({"mode": "async", "methods": "local"}, "'local', whose nodes do not learn together"),
        ({"mode": "async", "methods": "apfl"}, r"'apfl', whose strategy takes all updates .* \(begin_round, complete"),
        ({"mode": "async", "methods": "clustered", "num-nodes": 9}, "'clustered', whose strategy"),
        ({"methods": "fedavg,fedavg(run.mode=async)", "dp": "local"}, "dp: must be 'none' with mode"),
        ({"over-selection": 1.3}, "fraction-train: must be below 1 with over-selection = 1.3, because no other node"),
        ({"over-selection": 1.3, "sampling": "poisson"}, "sampling: must be 'fixed' with over-selection = 1.3"),
        ({"over-selection": 1.3, "aggregation": "median"}, "aggregation: must be 'mean' with over-selection = 1.3"),
        ({"sampling": "utility", "dp": "local"}, "sampling = 'utility': must be 'fixed' or 'poisson' with dp"),
        ({"sampling": "tiers", "drop-nodes": True}, "drop-nodes = true: must be false with sampling = 'tiers'"),
        ({"deadline": 9.0, "in-flight": 2}, "in-flight: must be 0 with over-selection = 1, deadline = 9"),
        ({"deadline": 9.0, "collect-after": 6}, "collect-after: must be 0 with over-selection = 1, deadline = 9"),
        ({"over-selection": 1.3, "dp": "central-server"}, "dp: must be 'none' or 'local' with over-selection = 1.3"),
        ({"deadline": 9.0, "dp": "distributed"}, "dp: must be 'none' or 'local' with over-selection = 1, deadline = 9"),
        ({"over-selection": 1.3, "drop-nodes": True}, "drop-nodes: must be false with over-selection"),
        ({"deadline": 9.0, "late-replies": "fold", "dp": "local"}, "dp: must be 'none' with late-replies = 'fold'"),
        ({"deadline": 9.0, "late-replies": "fold", "methods": "scaffold"}, "must be 'drop' with 'scaffold'"),
        ({"task": "social", "mode": "async"}, "mode = 'async': must be 'sync' with 'fedavg' and data in"),
        (
            {"task": "social", "deadline": 9.0, "late-replies": "fold"},
            "late-replies = 'fold': must be 'drop' with data in",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(keys, message):
    with pytest.raises(ConfigError, match=message):
        parse(RUN | keys)


def test_which_methods_work_asynchronously():
    run = parse(RUN | {"mode": "async"}).run
    methods = {name: build_method(read_expression(name), {}) for name in method_names()}
    refused = {name: [found for found, _ in pace_conflicts(run, name, method, 1)] for name, method in methods.items()}
    assert {name for name, fields in refused.items() if not fields} == {
        "fedavg", "fedprox", "fedsgd", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "spfl", "per-fedavg", "moon",
        "fedper", "fedrep", "fedbabu", "fedbn", "lg-fedavg", "fedala", "ditto", "pfedme", "apfl-deng", "fedrecon",
        "fedit", "fedsa-lora", "fedvln", "fedvocab",
    }  # fmt: skip
    assert all("mode" in found for fields in refused.values() for found in fields)
