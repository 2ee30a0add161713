"""Means over seeds with their intervals, against numbers worked out by hand and SciPy's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from fedapps.base.report.numbers import Estimate


def test_an_interval_by_hand():
    # differences 1, 2, 3: deviation 1, standard error 1 / sqrt(3), 97.5 % quantile of t (2 degrees of freedom) 4.3027
    gap = Estimate.of([2, 4, 6]).minus(Estimate.of([1, 2, 3]))
    assert (gap.mean, gap.seeds, gap.sd, gap.values) == (2, 3, 1, (1, 2, 3))
    assert (gap.low, gap.high) == (pytest.approx(2 - 2.48414, abs=1e-5), pytest.approx(2 + 2.48414, abs=1e-5))


@given(st.lists(st.tuples(*[st.integers(-99, 99)] * 2), min_size=2, max_size=9), st.floats(0.5, 0.99))
def test_it_is_scipys_interval(pairs, confidence):
    a, b = zip(*pairs, strict=True)
    gap = Estimate.of(a).minus(Estimate.of(b), confidence)
    if len({x - y for x, y in pairs}) == 1:
        assert gap.low == gap.mean == gap.high
    else:
        expected = ttest_rel(a, b).confidence_interval(confidence)
        assert (gap.low, gap.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_one_seed_has_no_interval():
    gap = Estimate.of([2.0]).minus(Estimate.of([1.5]))
    assert (gap.mean, gap.seeds, gap.sd, gap.low, gap.high, gap.half) == (0.5, 1, None, None, None, None)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_value_that_is_not_finite_has_no_spread(value):
    one = Estimate.of([value, 1.0])
    assert not any(map(math.isfinite, (one.mean, one.sd, one.low, one.high)))


def test_half_a_width_by_hand():
    assert Estimate.of([0.0, 2.0]).half == pytest.approx(12.7062, abs=1e-4)  # t with 1 degree of freedom, error 1
    assert Estimate(1.0, seeds=2, sd=2**0.5).half == pytest.approx(12.7062, abs=1e-4)  # of a stored deviation


def test_the_difference_the_other_way_round():
    gap = Estimate(1.0, 3, 0.5, low=-1.0, high=3.0, values=(0.5, 1.5), p=0.25)
    assert gap.negated() == Estimate(-1.0, 3, 0.5, low=-3.0, high=1.0, values=(-0.5, -1.5), p=0.25)


def test_seeds_that_failed_are_counted():
    assert (Estimate(1.0, 3, planned=5).counted, Estimate(1.0, 3).counted) == ("(3 of 5)", "")
