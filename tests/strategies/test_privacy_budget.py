"""Privacy amplification by Poisson sampling: divergences and ε against other ways to compute them."""

from math import exp, inf, lgamma, log, log1p, pi, sqrt

import pytest
from fedapps.strategies.privacy import epsilon, renyi_divergence, sampled_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

# noise, probability, rounds, delta: ε of dp-accounting 0.6.0, PLDAccountant().compose(event).get_epsilon(delta) and
# RdpAccountant(orders).compose(event).get_epsilon(delta), with
# event = SelfComposedDpEvent(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)), rounds)
# orders = list(1 + np.geomspace(1e-2, 1e3, 1500))
DP_ACCOUNTING = {
    (1.0, 0.1, 20, 1e-5): (3.59074, 4.22408),
    (1.0, 0.5, 20, 1e-5): (15.12327, 16.57517),
    (0.5, 0.1, 20, 1e-5): (15.59676, 18.12870),
    (1.1, 0.01, 1000, 1e-5): (1.51537, 1.71173),
    (4.0, 0.001, 10_000, 1e-6): (0.09337, 0.10081),
    (0.3, 0.2, 10, 1e-5): (49.02057, 55.02717),
    (1.0, 0.05, 100, 1e-3): (2.19353, 2.68729),
    (10.0, 0.3, 200, 1e-6): (1.90705, 2.05142),
    (2.0, 0.25, 15, 1e-5): (2.43627, 2.72922),
}

probabilities = st.floats(1e-4, 0.999)


def by_binomial_sum(noise, probability, order):
    """Mironov et al. 2019, Section 3.3, for integer orders."""
    terms = [
        lgamma(order + 1) - lgamma(k + 1) - lgamma(order - k + 1)
        + (order - k) * log1p(-probability) + k * log(probability) + (k * k - k) / (2 * noise**2)
        for k in range(order + 1)
    ]  # fmt: skip
    return float(logsumexp(terms)) / (order - 1)


def by_quadrature(noise, probability, order):
    """The integral that defines the divergence, by SciPy's adaptive quadrature."""

    def integrand(x):
        ratio = 1 - probability + probability * exp((2 * x - 1) / (2 * noise**2))
        return exp(order * log(ratio) - (x / noise) ** 2 / 2) / (noise * sqrt(2 * pi))

    low, high = -12 * noise, order + 12 * noise
    value, _ = quad(integrand, low, high, points=[0.0, 0.5, order], limit=500, epsabs=0, epsrel=1e-11)
    return log(value) / (order - 1)


# -- the divergence of one round -----------------------------------------------------------------------------


def test_by_hand_the_divergence_of_order_2():
    # 1 - q² + q² e^(1/σ²) for order 2: the second moment of the ratio of the densities
    assert renyi_divergence(2.0, 0.3, 2.0) == pytest.approx(log(1 - 0.09 + 0.09 * exp(0.25)), rel=1e-12)


@settings(deadline=None)
@given(noise=st.floats(0.05, 50), probability=probabilities, order=st.integers(2, 60))
def test_at_integer_orders_it_is_the_binomial_sum(noise, probability, order):
    expected = by_binomial_sum(noise, probability, order)
    assert renyi_divergence(noise, probability, order) == pytest.approx(expected, rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("order", [1.05, 1.4, 2.3, 4.7])
@pytest.mark.parametrize("probability", [0.01, 0.2, 0.9])
@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_at_other_orders_it_is_the_integral(noise, probability, order):
    expected = by_quadrature(noise, probability, order)
    assert renyi_divergence(noise, probability, order) == pytest.approx(expected, rel=1e-7)


# RdpAccountant([order]).compose(PoissonSampledDpEvent(probability, GaussianDpEvent(noise)))._rdp[0] of dp-accounting
@pytest.mark.parametrize(
    ("noise", "probability", "order", "expected"),
    [
        (1.0, 0.1, 2, 0.017036863236176605),
        (1.0, 0.1, 5, 0.12987743328399703),
        (0.5, 0.5, 3, 4.960794445987064),
        (4.0, 0.001, 64, 2.072290466294457e-06),
        (1.1, 0.01, 16, 1.6998267277531747),
    ],
)
def test_it_is_that_of_dp_accounting(noise, probability, order, expected):
    assert renyi_divergence(noise, probability, order) == pytest.approx(expected, rel=1e-9)


@given(noise=st.floats(0.1, 50), order=st.floats(1.01, 50))
def test_with_a_probability_of_almost_1_it_is_that_of_the_gaussian_mechanism(noise, order):
    assert renyi_divergence(noise, 1 - 1e-12, order) == pytest.approx(order / (2 * noise**2), rel=1e-6)


# -- epsilon -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DP_ACCOUNTING, ids=str)
def test_epsilon_is_between_the_two_of_dp_accounting(case):
    # At orders that are no integers, dp-accounting adds the absolute values of an alternating series: up to 0.2 % more.
    noise, probability, rounds, delta = case
    tight, renyi = DP_ACCOUNTING[case]
    found = epsilon(noise, rounds, delta, sampling_probability=probability)
    assert 1.07 * tight < found < 1.23 * tight
    assert 0.998 * renyi < found < renyi * (1 + 1e-4)


@pytest.mark.parametrize("case", [case for case in DP_ACCOUNTING if case[1] >= 0.05], ids=str)
def test_epsilon_is_the_minimum_over_all_orders_to_four_digits(case):
    noise, probability, rounds, delta = case

    def bound(order):
        spent = rounds * by_quadrature(noise, probability, order)
        return spent + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1)

    expected = minimize_scalar(bound, bounds=(1.05, 12), method="bounded", options={"xatol": 1e-6}).fun
    assert sampled_epsilon(noise, {1: rounds}, delta, probability) == pytest.approx(expected, rel=5e-5)


@settings(deadline=None, max_examples=50)
@given(noise=st.floats(0.01, 100), rounds=st.integers(1, 5000), delta=st.floats(1e-9, 0.1), probability=probabilities)
def test_sampling_never_makes_privacy_weaker(noise, rounds, delta, probability):
    found = epsilon(noise, rounds, delta, sampling_probability=probability)
    assert 0 <= found <= epsilon(noise, rounds, delta)
    assert found <= epsilon(noise, rounds, delta, sampling_probability=(1 + probability) / 2) * (1 + 1e-4) + 1e-9


@settings(deadline=None, max_examples=50)
@given(noise=st.floats(0.5, 10), draws=st.lists(st.integers(0, 4), min_size=1, max_size=5), probability=probabilities)
def test_releases_of_the_same_draw_are_one_with_less_noise(noise, draws, probability):
    found = epsilon(noise, draws, 1e-5, sampling_probability=probability)
    assert found >= epsilon(noise, sum(draws), 1e-5, sampling_probability=probability) * (1 - 1e-4)
    assert epsilon(noise, draws, 1e-5) == epsilon(noise, sum(draws), 1e-5)
    if len(draws) == 1 and draws[0]:
        alone = epsilon(noise / sqrt(draws[0]), 1, 1e-5, sampling_probability=probability)
        assert found == pytest.approx(alone, rel=1e-9, abs=1e-12)


def test_by_hand_two_draws_one_of_them_released_twice():
    both = [renyi_divergence(z, 0.2, 3.0) for z in (2.0, 2.0 / sqrt(2))]
    bound = sum(both) + log1p(-1 / 3) - (log(0.01) + log(3)) / 2
    assert sampled_epsilon(2.0, {1: 1, 2: 1}, 0.01, 0.2) <= bound
    with pytest.raises(ValueError, match=r"releases = \[1, -1\]"):
        epsilon(1.0, [1, -1], 1e-5)


def test_the_noise_counts_in_units_of_the_sensitivity():
    halved = epsilon(2.0, 20, 1e-5, sensitivity=2.0, sampling_probability=0.1)
    assert halved == epsilon(1.0, 20, 1e-5, sampling_probability=0.1)


def test_sampling_counts_for_nothing_where_noise_is_negligible():
    assert sampled_epsilon(0.01, {1: 1}, 1e-5, 0.1) == inf
    assert epsilon(0.01, 1, 1e-5, sampling_probability=0.1) == epsilon(0.01, 1, 1e-5)


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.1, float("nan")])
def test_a_probability_out_of_range_is_named(probability):
    with pytest.raises(ValueError, match=f"sampling_probability = {probability}: must be above 0 and at most 1"):
        epsilon(1.0, 1, 1e-5, sampling_probability=probability)
