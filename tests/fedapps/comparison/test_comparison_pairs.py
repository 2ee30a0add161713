"""The pairs of methods that are tested."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.comparison.significance import ALL_PAIRS_UP_TO, chosen_pairs, scheme


def means(*values):
    return {chr(ord("a") + place): value for place, value in enumerate(values)}


def test_all_pairs_of_few_methods():
    pairs = chosen_pairs(means(3.0, 1.0, 2.0))
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert scheme(pairs) == ""
    assert len(chosen_pairs(means(*range(ALL_PAIRS_UP_TO)))) == ALL_PAIRS_UP_TO * (ALL_PAIRS_UP_TO - 1) // 2


def test_many_methods_are_tested_against_the_best_and_the_first():
    pairs = chosen_pairs(means(5, 4, 1, 3, 2, 6, 7, 8))
    best = [("c", other) for other in "abdefgh"]
    assert pairs == [*best, *[("a", other) for other in "bdefgh"]]
    assert scheme(pairs) == (
        "every method against c (best mean) and against a (named first); Holm's correction over 13 tests"
    )


def test_the_best_may_have_the_highest_mean():
    assert chosen_pairs(means(5, 4, 1, 3, 2, 6, 7, 8), better=1)[0] == ("h", "a")


def test_the_first_may_be_the_best():
    pairs = chosen_pairs(means(*range(9)))
    assert pairs == [("a", other) for other in "bcdefghi"]
    assert "a (best mean), which is also the one named first; Holm's correction over 8 tests" in scheme(pairs)


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_methods_have_no_pairs(count):
    assert chosen_pairs(means(*range(count))) == []


@given(st.lists(st.floats(-10, 10), max_size=14))
def test_no_pair_twice_and_none_with_itself(values):
    pairs = [frozenset(pair) for pair in chosen_pairs(means(*values))]
    assert len(pairs) == len(set(pairs))
    assert all(len(pair) == 2 for pair in pairs)
    assert len(values) < 2 or {method for pair in pairs for method in pair} == set(means(*values))
