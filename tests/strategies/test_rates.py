import numpy as np
import pytest
from fedapps.strategies.algorithms.adaptive_rates import adaptive_rates
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

SIGMA = {"w": np.array([[1.0, 3.0], [4.0, 0.0]]), "b": np.array(16.0), "steps": np.array([5])}


def test_per_parameter_by_hand():
    rates = adaptive_rates(SIGMA)
    assert list(rates) == ["w", "b"]
    assert rates["w"].tolist() == [[1 / 16, 3 / 16], [1 / 4, 0.0]]
    assert rates["b"] == 1.0
    assert rates["b"].shape == ()


def test_per_tensor_by_hand():
    rates = adaptive_rates(SIGMA, "tensor")  # means 2 and 16
    assert (rates["w"].shape, rates["b"].shape) == ((), ())
    assert (rates["w"], rates["b"]) == (1 / 8, 1.0)


def test_the_mean_per_element_keeps_large_tensors_from_dominating():
    rates = adaptive_rates({"large": np.full(1000, 1.0), "small": np.full(2, 4.0)}, "tensor")
    assert (rates["large"], rates["small"]) == (0.25, 1.0)


def test_the_square_root_compares_standard_deviations():
    rates = adaptive_rates(SIGMA, "parameter", power=0.5)
    np.testing.assert_allclose(rates["w"], [[1 / 4, np.sqrt(3) / 4], [1 / 2, 0.0]])


@pytest.mark.parametrize("granularity", ["parameter", "tensor"])
def test_agreement_everywhere_leaves_the_basic_rate(granularity):
    rates = adaptive_rates({"w": np.zeros((2, 2)), "b": np.zeros(0)}, granularity)
    assert rates["w"].tolist() == ([[1.0, 1.0], [1.0, 1.0]] if granularity == "parameter" else 1.0)
    assert adaptive_rates({}, granularity) == {}


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(np.float64, hnp.array_shapes(max_dims=2, max_side=4), elements=st.floats(0, 1e12)),
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=2, max_side=4), elements=st.floats(0, 1e6, width=32)),
    st.sampled_from(["parameter", "tensor"]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_ratios_lie_in_the_unit_interval_and_ignore_the_scale(one, other, granularity, power):
    rates = adaptive_rates({"a": one, "b": other}, granularity, power)
    values = np.concatenate([rate.ravel() for rate in rates.values()])
    assert np.all((values >= 0) & (values <= 1))
    assert values.max() == 1
    if granularity == "parameter":
        assert [rate.shape for rate in rates.values()] == [one.shape, other.shape]
    scaled = adaptive_rates({"a": one * 8, "b": other * 8}, granularity, power)
    np.testing.assert_allclose(np.concatenate([rate.ravel() for rate in scaled.values()]), values, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"granularity": "layer"}, "granularity = 'layer'"),
        ({"power": 0.0}, r"power = 0\.0"),
        ({"power": float("inf")}, "power = inf"),
    ],
)
def test_ranges(options, match):
    with pytest.raises(ValueError, match=match):
        adaptive_rates(SIGMA, **options)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_deviations_must_be_finite_and_not_negative(bad):
    with pytest.raises(ValueError, match=r"deviation\['w'\]"):
        adaptive_rates({"w": np.array([1.0, bad])})
