"""AdaptiveRates: the rates of Algorithm 1, how they travel, and that they survive a restart."""

import numpy as np
import pytest
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies.algorithms.apfl import AdaptiveRates, adaptive_rates
from fedapps.strategies.base import BaseStrategy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

START = {"a": np.array([5.0, 6.0], np.float32), "b": np.array([[7.0]], np.float32)}


def spread(partition, arrays, config):
    """Nodes 0, 1, 2 move a by (0, 1, 2) and 0, b by (0, 2, 4); their sizes differ, which changes no deviation."""
    moved = {"a": arrays["a"] + np.array([partition, 0], np.float32), "b": arrays["b"] + 2 * partition}
    return {name: array.astype(np.float32) for name, array in moved.items()}, {"num-examples": 1 + partition}


def rates_after(train, num_nodes, **options):
    strategy = AdaptiveRates(**options)
    federate(strategy, arithmetic_app(train), START, num_nodes=num_nodes, num_rounds=1)
    return strategy.rates


@pytest.mark.parametrize(
    ("options", "a", "b"),
    [
        # sigma: a = (1 + 0 + 1, 0), b = 4 + 0 + 4; its largest is 8
        ({"granularity": "parameter"}, [2 / 8, 0.0], [[1.0]]),
        ({"granularity": "parameter", "power": 0.5}, [0.5, 0.0], [[1.0]]),
        # per tensor the mean: a = 1, b = 8
        ({"granularity": "tensor"}, 1 / 8, 1.0),
        ({"granularity": "tensor", "power": 0.5}, np.sqrt(1 / 8), 1.0),
        ({}, 1 / 8, 1.0),
    ],
)
def test_rates_of_three_nodes_by_hand(options, a, b):
    rates = rates_after(spread, 3, **options)
    np.testing.assert_allclose(rates["a"], a, rtol=1e-12)
    np.testing.assert_allclose(rates["b"], b, rtol=1e-12)
    assert rates["a"].shape == np.shape(a)


def test_the_shared_parameters_are_those_of_fedavg():
    arrays = [
        arrays_of(federate(strategy, arithmetic_app(spread), START, num_nodes=3, num_rounds=2).arrays)
        for strategy in (BaseStrategy(), AdaptiveRates())
    ]
    assert same_bits(*arrays)


def test_the_rates_of_the_round_arrive_at_evaluation_and_only_there():
    seen, reports = [], []
    federate(
        AdaptiveRates(granularity="parameter"),
        arithmetic_app(spread, seen=seen),
        START,
        num_nodes=3,
        num_rounds=2,
        on_round=reports.append,
    )
    for message in seen:
        if message.metadata.message_type == "train":
            assert "adaptive.rates" not in message.content
        else:
            received = arrays_of(message.content["adaptive.rates"])
            np.testing.assert_allclose(received["a"], [0.25, 0.0], rtol=1e-5)
            np.testing.assert_array_equal(received["b"], [[1.0]])
    assert [r.strategy["rates"] for r in reports] == [pytest.approx({"a": 0.125, "b": 1.0}, rel=1e-5)] * 2


def test_only_shared_parameters_have_rates():
    rates = rates_after(spread_of_b, 3, shared=["b"])
    assert list(rates) == ["b"]


def spread_of_b(partition, arrays, config):
    return {"b": arrays["b"] + np.float32(partition)}, {"num-examples": 1}


def test_a_refused_reply_changes_no_rate():
    def train(partition, arrays, config):
        trained, metrics = spread(partition, arrays, config)
        return ({**trained, "a": trained["a"] * np.nan} if partition == 3 else trained), metrics

    assert same_bits(rates_after(train, 4), rates_after(spread, 3))


def test_rates_start_afresh_in_every_round():
    def train(partition, arrays, config):
        return (spread if config["server-round"] == 1 else spread_of_a)(partition, arrays, config)

    strategy = AdaptiveRates(granularity="parameter")
    federate(strategy, arithmetic_app(train), START, num_nodes=3, num_rounds=2)
    np.testing.assert_array_equal(strategy.rates["a"], [1.0, 0.0])
    np.testing.assert_array_equal(strategy.rates["b"], [[0.0]])


def spread_of_a(partition, arrays, config):
    return {**arrays, "a": arrays["a"] + np.array([partition, 0], np.float32)}, {"num-examples": 1}


def test_the_state_survives_a_restart():
    before = AdaptiveRates(granularity="parameter")
    federate(before, arithmetic_app(spread), START, num_nodes=3, num_rounds=1)
    after = AdaptiveRates(granularity="parameter")
    after.load_state(before.state())
    assert before.rates
    assert same_bits(after.rates, before.rates)
    # ... and the first evaluation after it gets them.
    grid = InProcessGrid(arithmetic_app(spread), [{}], {})
    (message,) = after.configure_evaluate(2, record_of(START), {}, grid)
    assert same_bits(arrays_of(message.content["adaptive.rates"]), before.rates)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"granularity": "layer"}, "granularity = 'layer': must be one of 'parameter', 'tensor'"),
        ({"power": 0.0}, r"power = 0\.0: must be finite and above 0"),
        ({"power": float("nan")}, "power = nan"),
        ({"power": float("inf")}, "power = inf"),
    ],
)
def test_bad_parameters_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        AdaptiveRates(**options)


def test_the_mean_per_element_keeps_large_tensors_from_dominating():
    rates = adaptive_rates({"large": np.full(1000, 1.0), "small": np.full(2, 4.0)}, "tensor")
    assert (rates["large"], rates["small"]) == (0.25, 1.0)


@pytest.mark.parametrize("granularity", ["parameter", "tensor"])
def test_agreement_everywhere_leaves_the_basic_rate(granularity):
    rates = adaptive_rates({"w": np.zeros((2, 2)), "b": np.zeros(0)}, granularity)
    assert rates["w"].tolist() == ([[1.0, 1.0], [1.0, 1.0]] if granularity == "parameter" else 1.0)
    assert adaptive_rates({}, granularity) == {}


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=0, max_dims=2, max_side=4), elements=st.floats(0, 1e12)),
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=2, max_side=4), elements=st.floats(0, 1e6, width=32)),
    st.sampled_from(["parameter", "tensor"]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_ratios_lie_in_the_unit_interval_and_ignore_the_scale(one, other, granularity, power):
    rates = adaptive_rates({"a": one, "b": other}, granularity, power)
    assert {type(rate) for rate in rates.values()} == {np.ndarray}
    values = np.concatenate([rate.ravel() for rate in rates.values()])
    assert np.all((values >= 0) & (values <= 1))
    assert values.max() == 1
    if granularity == "parameter":
        assert [rate.shape for rate in rates.values()] == [one.shape, other.shape]
    scaled = adaptive_rates({"a": one * 8, "b": other * 8}, granularity, power)
    np.testing.assert_allclose(np.concatenate([rate.ravel() for rate in scaled.values()]), values, rtol=1e-6)
