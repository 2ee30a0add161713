"""Paired tests between methods over seeds, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.comparison.significance import Sample, all_tests, holm, paired_tests

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


def sample(*seeds, nodes=None):
    return Sample([float(value) for value in seeds], nodes or {})


def test_one_pair_by_hand():
    # differences 1, 2, 3, 4, -1: the sum is 9; the sums of the 32 sign patterns are 9 or more, up to sign, for
    # +++++ (11), ++++- and -++++ (9), and their opposites
    (test,) = paired_tests("loss", {"sfl": sample(2, 3, 4, 5, 0), "apfl": sample(1, 1, 1, 1, 1)})
    assert (test["metric"], test["a"], test["b"], test["seeds"]) == ("loss", "sfl", "apfl", 5)
    assert test["p"] == test["p_holm"] == 6 / 32
    # deviation sqrt(14.8 / 4), 97.5 % quantile of t with 4 degrees of freedom 2.7764
    half = 2.7764 * (14.8 / 4) ** 0.5 / 5**0.5
    assert test["mean_difference"] == pytest.approx(1.8)
    assert (test["low"], test["high"]) == (pytest.approx(1.8 - half, abs=1e-3), pytest.approx(1.8 + half, abs=1e-3))


def test_nodes_and_sessions_of_a_seed_do_not_lower_p():
    rows = [run("a", seed, 1.0 + seed, {f"node-{n}": 0.0 for n in range(50)}) for seed in range(3)]
    rows += [run("b", seed, 9.0, {f"node-{n}": 9.0 for n in range(50)}) for seed in range(3)]
    (test,) = all_tests(rows, ["a", "b"], ["test.loss"])
    assert (test["seeds"], test["p"], test["mean_difference"]) == (3, 2 / 8, -7.0)
    assert (test["nodes_lower"], test["nodes_higher"]) == (50, 0)


def run(method, seed, loss, nodes=None):
    reported = [{"node": node, "metrics": {"test.loss": value}} for node, value in (nodes or {}).items()]
    return {"method": method, "seed": seed, "metrics": {"loss": loss}, "nodes": reported}


def test_one_seed_tests_nothing():
    (test,) = paired_tests("loss", {"a": sample(1), "b": sample(5)})
    assert (test["seeds"], test["p"], test["low"], test["high"]) == (1, 1.0, None, None)


def test_signs_are_counted_by_the_mean_of_each_node_over_its_seeds():
    left = {(0, "a"): 1.0, (1, "a"): 1.0, (0, "b"): 5.0, (0, "c"): 1.0, (0, "d"): 2.0, (0, "only here"): 0.0}
    right = {(0, "a"): 4.0, (1, "a"): 0.0, (0, "b"): 1.0, (0, "c"): 1.0, (0, "d"): 3.0}
    (test,) = paired_tests("loss", {"a": sample(1, 1, nodes=left), "b": sample(1, 1, nodes=right)})
    assert (test["nodes_lower"], test["nodes_higher"]) == (2, 1)  # a and d; b; c is a tie


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_method_without_a_finite_value_for_every_seed_is_not_tested(value):
    rows = [run(method, seed, float(seed)) for seed in range(2) for method in "abc"]
    rows[1]["metrics"]["loss"] = value
    assert [(test["a"], test["b"]) for test in all_tests(rows, list("abc"), ["test.loss"])] == [("a", "c")]


def test_every_pair_is_tested_and_corrected_together():
    rng = np.random.default_rng(0)
    samples = {name: sample(*rng.normal(shift, 1, 8)) for name, shift in (("a", 0), ("b", 1), ("c", 3))}
    tests = paired_tests("loss", samples)
    assert [(test["a"], test["b"]) for test in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [test["p_holm"] for test in tests] == holm([test["p"] for test in tests])
    assert any(test["p_holm"] > test["p"] for test in tests)


def test_many_methods_are_tested_against_the_one_with_the_highest_accuracy():
    samples = {name: sample(place, place + 1) for place, name in enumerate("abcdefghi")}
    assert {test["a"] for test in paired_tests("accuracy", samples)} == {"i", "a"}
    assert {test["a"] for test in paired_tests("loss", samples)} == {"a"}


def test_one_method_alone_has_no_tests():
    assert paired_tests("loss", {"a": sample(1)}) == []
