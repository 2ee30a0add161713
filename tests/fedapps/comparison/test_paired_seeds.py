"""Paired differences over seeds: the sign-flip test and intervals, against numbers worked out by hand and SciPy."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel, wilcoxon

from fedapps.comparison.significance import half_width, paired_difference, seed_values, sign_flip_p

WHOLE = st.lists(st.integers(-20, 20), min_size=1, max_size=6)


def p_of(*differences):
    return float(sign_flip_p(np.array(differences, dtype=float)))


# -- the test --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ((1, 2, 3), 2 / 8),  # only +++ and --- sum to 6 or more
        ((3, 1, -1), 6 / 8),  # of the sums ±5, ±3, ±3 and ±1, six are 3 or more
        ((1, 2, -3), 1),  # the sum is 0
        ((4, 1, 1, -1), 8 / 16),  # the sum is 5: +4 with at least two of three +1, and the opposites
    ],
)
def test_sign_flips_by_hand(differences, p):
    assert p_of(*differences) == p


@pytest.mark.parametrize("seeds", range(1, 13))
def test_the_smallest_p_is_that_of_differences_of_one_sign(seeds):
    assert p_of(*range(1, seeds + 1)) == 2.0 ** (1 - seeds)


def test_equal_values_have_p_one():
    assert p_of(0, 0, 0, 0, 0) == 1
    assert p_of(0) == 1


@given(WHOLE)
def test_all_sign_patterns_are_counted(differences):
    sums = [abs(np.dot(signs, differences)) for signs in product((-1, 1), repeat=len(differences))]
    assert p_of(*differences) == np.mean([found >= abs(sum(differences)) for found in sums])


@given(WHOLE, st.randoms(use_true_random=False))
def test_neither_the_order_of_seeds_nor_that_of_methods_matters(differences, random):
    shuffled = random.sample(differences, len(differences))
    p = p_of(*differences)
    assert p == p_of(*shuffled) == p_of(*(-value for value in shuffled))
    assert 2.0 ** (1 - len(differences)) <= p <= 1


@pytest.mark.parametrize("ranks", [(1, -2, 3, 4, 5, 6), (-1, 2, -3, 4, 5), (1, 2, 3, 4, 5, 6, 7)])
def test_of_signed_ranks_it_is_wilcoxons_exact_test(ranks):
    assert p_of(*ranks) == pytest.approx(float(wilcoxon(ranks, method="exact").pvalue))


def test_of_many_seeds_patterns_are_drawn_the_same_each_time():
    differences = np.random.default_rng(0).normal(0.4, 1, 20)
    assert p_of(*differences) == p_of(*differences)
    assert p_of(*differences) == pytest.approx(float(ttest_rel(differences, np.zeros(20)).pvalue), abs=0.01)


# -- the interval ----------------------------------------------------------------------------------------------


def test_an_interval_by_hand():
    # differences 1, 2, 3: deviation 1, standard error 1 / sqrt(3), 97.5 % quantile of t (2 degrees of freedom) 4.3027
    found = paired_difference([2, 4, 6], [1, 2, 3])
    assert found.mean == 2
    assert (found.low, found.high) == (pytest.approx(2 - 2.48414, abs=1e-5), pytest.approx(2 + 2.48414, abs=1e-5))


@given(st.lists(st.tuples(*[st.integers(-99, 99)] * 2), min_size=2, max_size=9), st.floats(0.5, 0.99))
def test_it_is_scipys_interval(pairs, confidence):
    a, b = zip(*pairs, strict=True)
    found = paired_difference(a, b, confidence)
    if len({x - y for x, y in pairs}) == 1:
        assert found.low == found.mean == found.high
    else:
        expected = ttest_rel(a, b).confidence_interval(confidence)
        assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_one_seed_has_no_interval():
    found = paired_difference([2.0], [1.5])
    assert (found.mean, found.low, found.high) == (0.5, None, None)


def test_half_a_width_by_hand():
    assert half_width([0.0, 2.0]) == pytest.approx(12.7062, abs=1e-4)  # t with 1 degree of freedom, standard error 1


# -- values ----------------------------------------------------------------------------------------------------


def test_values_are_those_of_all_seeds():
    rows = [
        {"method": "a", "metrics": {"x": 1.0, "rounds_to_target": 3}},
        {"method": "b", "metrics": {"x": 2.0}},
        {"method": "a", "metrics": {"x": 3.0}},
    ]
    assert seed_values(rows) == {"a": {"x": [1.0, 3.0]}, "b": {"x": [2.0]}}
