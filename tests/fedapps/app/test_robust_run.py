"""Runs with the keys aggregation and byzantine-fraction, and what they cannot be combined with."""

import re

import pytest
from fedapps.strategies import Krum, Median, MultiKrum, TrimmedMean

from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import ConfigError, parse
from fedapps.registry.methods import method_class, method_names

SMALL = {
    "task": "lqr", "num-nodes": 5, "rounds": 2, "evaluate-every": 2, "epochs": 1, "batch-size": 32,
    "learning-rate": 0.01, "collect-after": 0, "name": "robust", "methods": "sfl",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mean", None), ("median", Median()), ("trimmed-mean", TrimmedMean(0.1)), ("krum", Krum(0.1)),
     ("multi-krum", MultiKrum(0.1))],
)  # fmt: skip
def test_the_strategy_has_the_aggregation_of_the_run(name, expected):
    config = parse(SMALL | {"aggregation": name, "byzantine-fraction": 0.1, "methods": "fedavg,h-fl"})
    for label in config.methods:
        assert build_strategy(config, label).aggregation == expected


@pytest.mark.parametrize("aggregation", ["median", "multi-krum"])
def test_methods_that_a_robust_aggregation_does_not_protect_are_named_with_the_reason(aggregation):
    reasons = {name: method_class(name)().robustness_conflict() for name in method_names()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    assert {"apfl", "fedcurv", "fedvc", "scaffold", "untrained"} <= refused.keys()
    assert not {"fedavg", "fedprox", "h-fl", "local"} & refused.keys()
    for name, reason in refused.items():
        if not method_class(name).needs_stages:
            message = f"aggregation = '{aggregation}': leave out of methods {name}.*{re.escape(reason)}"
            with pytest.raises(ConfigError, match=message):
                parse(SMALL | {"methods": f"sfl,{name}", "aggregation": aggregation})


@pytest.mark.parametrize(("dp", "allowed"), [("local", True), ("central-server", False), ("central-client", False)])
def test_central_privacy_needs_the_mean(dp, allowed):
    given = SMALL | {"dp": dp, "aggregation": "median"}
    if allowed:
        parse(given)
    else:
        with pytest.raises(ConfigError, match=f"aggregation = 'median': must be 'mean' with dp = '{dp}'"):
            parse(given)


@pytest.mark.parametrize("sampling", ["tiers", "utility", "poisson"])
def test_samplings_that_byzantine_nodes_steer_or_that_draw_too_few_are_refused(sampling):
    given = SMALL | {"num-nodes": 20, "fraction-train": 0.5, "aggregation": "trimmed-mean"}
    parse(given)
    with pytest.raises(
        ConfigError, match=f"sampling = '{sampling}': must be 'fixed' with aggregation = 'trimmed-mean'"
    ):
        parse(given | {"sampling": sampling})


@pytest.mark.parametrize(
    ("aggregation", "fraction", "nodes", "needed"),
    [("krum", 0.2, 4, 5), ("multi-krum", 0.4, 10, 11), ("trimmed-mean", 0.1, 2, 3), ("krum", 0.0, 2, 3)],
)
def test_a_round_needs_enough_nodes(aggregation, fraction, nodes, needed):
    given = SMALL | {"aggregation": aggregation, "byzantine-fraction": fraction, "num-nodes": 2 * nodes}
    parse(given | {"num-nodes": 20})
    message = (
        rf"aggregation = '{aggregation}': needs at least {needed} replies with byzantine-fraction = {fraction:g}, "
    )
    with pytest.raises(ConfigError, match=rf"{message}but {nodes} nodes train in a round \(fraction-train = 0\.5"):
        parse(given | {"fraction-train": 0.5})


def test_values_are_checked():
    with pytest.raises(ConfigError, match="aggregation = 'geometric-median': must be one of 'mean', 'median'"):
        parse(SMALL | {"aggregation": "geometric-median"})
    with pytest.raises(ConfigError, match=r"byzantine-fraction = 0\.5: must be a number at least 0 and at most 0\.49"):
        parse(SMALL | {"byzantine-fraction": 0.5})
