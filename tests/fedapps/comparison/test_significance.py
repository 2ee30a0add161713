"""Paired tests between methods, against numbers worked out by hand and SciPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import wilcoxon

from fedapps.comparison.significance import holm, paired_tests


def sample(values, node="a", seed=0):
    return {(seed, node, index): value for index, value in enumerate(values)}


# -- Holm ------------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 -> x4 x3 x2 x1 = .02 .03 .06 .04 -> running maximum .02 .03 .06 .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(raw):
    corrected = holm(raw)
    assert len(corrected) == len(raw)
    assert all(p <= q <= min(1.0, p * len(raw)) for p, q in zip(raw, corrected, strict=True))
    ordered = [corrected[i] for i in sorted(range(len(raw)), key=raw.__getitem__)]
    assert ordered == sorted(ordered)
    if raw:
        assert min(corrected) == pytest.approx(min(1.0, min(raw) * len(raw)))


# -- the tests -------------------------------------------------------------------------------------------------


def test_one_pair_is_scipys_wilcoxon():
    left = [1.1, 2.3, 0.4, 5.0, 2.2, 3.1, 0.9]
    right = [1.0, 2.9, 0.7, 4.1, 2.9, 3.6, 1.9]
    (test,) = paired_tests("loss", {"sfl": sample(left), "apfl": sample(right)})
    differences = np.array(left) - np.array(right)
    assert test["p"] == test["p_holm"] == float(wilcoxon(left, right).pvalue)
    assert (test["metric"], test["a"], test["b"], test["n"]) == ("loss", "sfl", "apfl", 7)
    assert test["median_difference"] == np.median(differences) < 0


def test_the_smallest_p_of_five_pairs_by_hand():
    # all five differences positive: p = 2 / 2^5
    (test,) = paired_tests("loss", {"a": sample([2, 3, 4, 5, 6]), "b": sample([1, 1, 1, 1, 1])})
    assert test["p"] == pytest.approx(2 / 32)
    assert test["median_difference"] == 3


def test_equal_samples_have_p_one():
    (test,) = paired_tests("loss", {"a": sample([1.0, 2.0]), "b": sample([1.0, 2.0])})
    assert (test["p"], test["p_holm"], test["median_difference"]) == (1.0, 1.0, 0.0)
    assert (test["nodes_lower"], test["nodes_higher"]) == (0, 0)


def test_only_keys_that_both_have_are_paired():
    left = {(0, "a", 0): 1.0, (0, "a", 1): 9.0, (1, "a", 0): 3.0}
    right = {(1, "a", 0): 1.0, (0, "a", 0): 2.0, (0, "b", 1): 70.0}
    (test,) = paired_tests("loss", {"a": left, "b": right})
    assert test["n"] == 2
    assert test["median_difference"] == 0.5  # of 1 - 2 and 3 - 1


def test_samples_without_common_keys_have_p_one():
    (test,) = paired_tests("loss", {"a": sample([1.0]), "b": sample([1.0], node="b")})
    assert (test["n"], test["p"], test["median_difference"]) == (0, 1.0, 0.0)


def test_signs_are_counted_by_the_mean_of_each_node_over_its_seeds():
    left = {(0, "a", 0): 1.0, (1, "a", 0): 1.0, (0, "b", 0): 5.0, (0, "c", 0): 1.0, (0, "d", 0): 2.0}
    right = {(0, "a", 0): 4.0, (1, "a", 0): 0.0, (0, "b", 0): 1.0, (0, "c", 0): 1.0, (0, "d", 0): 3.0}
    (test,) = paired_tests("loss", {"a": left, "b": right})
    assert (test["nodes_lower"], test["nodes_higher"]) == (2, 1)  # a and d; b; c is a tie


def test_every_pair_is_tested_and_corrected_together():
    rng = np.random.default_rng(0)
    samples = {name: sample(rng.normal(shift, 1, 12)) for name, shift in (("a", 0), ("b", 1), ("c", 3))}
    tests = paired_tests("loss", samples)
    assert [(test["a"], test["b"]) for test in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [test["p_holm"] for test in tests] == holm([test["p"] for test in tests])
    assert any(test["p_holm"] > test["p"] for test in tests)


def test_one_method_alone_has_no_tests():
    assert paired_tests("loss", {"a": sample([1.0])}) == []
