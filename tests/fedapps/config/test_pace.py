"""The keys of the pace: what they make of a strategy, and what they cannot be combined with."""

import pytest
from fedapps.strategies import BaseStrategy, BufferedAsync, Closing, SpeedTiers, Staleness, Utility

from fedapps.app.strategy import build_strategy
from fedapps.config.pace_conflicts import pace_conflicts
from fedapps.config.parsing import ConfigError, parse
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method, method_names

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
        ({"over-selection": 1.3, "drop-nodes": True}, "drop-nodes: must be false with over-selection"),
        ({"deadline": 9.0, "late-replies": "fold", "dp": "local"}, "dp: must be 'none' with late-replies = 'fold'"),
        ({"deadline": 9.0, "late-replies": "fold", "methods": "scaffold"}, "must be 'drop' with 'scaffold'"),
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


def test_data_in_stages_need_rounds():
    run = {"task": "social", "num-nodes": 7, "collect-after": 0, "methods": "fedavg"}
    with pytest.raises(ConfigError, match="mode = 'async': must be 'sync' with 'fedavg' and data in"):
        parse(run | {"mode": "async"})
    with pytest.raises(ConfigError, match="late-replies = 'fold': must be 'drop' with data in"):
        parse(run | {"deadline": 9.0, "late-replies": "fold"})
