"""The sentences beside p-values and verdicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.report.comparison_tables import SIGNIFICANT, about_claims, about_tests, needed_seeds, smallest_p


def test_the_smallest_p_by_hand():
    assert [smallest_p(seeds) for seeds in (1, 2, 5, 10)] == [1, 1 / 2, 1 / 16, 1 / 512]


@pytest.mark.parametrize(("tests", "seeds"), [(1, 10), (25, 10), (26, 11), (53, 12)])
def test_the_needed_seeds_by_hand(tests, seeds):
    # 25 / 512 = .0488, 26 / 512 = .0508, 53 / 1024 = .0518
    assert needed_seeds(tests) == seeds


@given(st.integers(1, 10_000))
def test_the_needed_seeds_are_enough(tests):
    assert tests * smallest_p(needed_seeds(tests)) <= SIGNIFICANT


def test_advice_is_given_only_where_the_seeds_are_too_few():
    assert "use 10 seeds" in about_tests(5, 1)
    assert "0.041 after Holm's correction over 21 tests" in about_tests(10, 21)
    assert "use" not in about_tests(10, 21)
    assert "use 11 seeds" in about_tests(10, 36)


def test_claims_of_one_seed_have_no_verdict():
    assert about_claims(1).startswith("One seed gives no verdict")
    assert "over 3 seeds" in about_claims(3)
