"""A cap on the share of single terms in a weighted mean."""

from itertools import pairwise

import pytest
from fedapps.strategies.algorithms.h_fl import capped
from hypothesis import given
from hypothesis import strategies as st

WEIGHTS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8)


def test_by_hand():
    assert capped([6.0, 3.0, 1.0], 0.5) == ([0.5, pytest.approx(0.375), pytest.approx(0.125)], 0.0)
    # 8 of 10 is cut to .4; then 1.5 of 2 would have .45 of the rest and is cut, too.
    assert capped([8.0, 1.5, 0.5], 0.4) == ([0.4, 0.4, pytest.approx(0.2)], 0.0)
    assert capped([1.0], 0.25) == ([0.25], 0.75)
    assert capped([1.0, 1.0], 0.25) == ([0.25, 0.25], 0.5)


@given(WEIGHTS)
def test_a_cap_of_one_changes_no_bit(weights):
    assert capped(weights, 1.0) == (weights, 0.0)


@given(WEIGHTS, st.floats(0.01, 1))
def test_no_share_is_above_the_cap_and_nothing_is_lost(weights, cap):
    limited, rest = capped(weights, cap)
    total = sum(limited) + rest
    assert max(limited) <= cap * total * (1 + 1e-9)
    assert 0 <= rest < 1
    assert rest == pytest.approx(max(0.0, 1 - cap * len(weights)) * total, abs=1e-9)
    order = sorted(range(len(weights)), key=weights.__getitem__)
    assert all(limited[a] <= limited[b] * (1 + 1e-9) for a, b in pairwise(order))
