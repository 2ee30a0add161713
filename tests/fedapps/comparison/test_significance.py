"""Paired tests between methods over seeds, against numbers worked out by hand."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import ttest_rel, wilcoxon

from fedapps.comparison.significance import (
    ALL_PAIRS_UP_TO,
    Sample,
    all_tests,
    chosen_pairs,
    holm,
    paired_tests,
    seed_values,
    sign_flip_p,
)
from fedapps.report.comparison_tables import scheme, smallest_p

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
    assert p_of(*range(1, seeds + 1)) == smallest_p(seeds) == 2.0 ** (1 - seeds)


@pytest.mark.parametrize("seeds", [16, 17, 24])
def test_with_drawn_patterns_the_smallest_p_is_that_of_the_observed_one(seeds):
    """No drawn pattern is as extreme as differences of one sign."""
    assert p_of(*range(1, seeds + 1)) == pytest.approx(smallest_p(seeds), rel=1e-12)


@example([0] * 5)
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


# -- values ----------------------------------------------------------------------------------------------------


def test_values_are_those_of_all_seeds():
    rows = [
        {"method": "a", "metrics": {"x": 1.0, "rounds_to_target": 3}},
        {"method": "b", "metrics": {"x": 2.0}},
        {"method": "a", "metrics": {"x": 3.0}},
    ]
    assert seed_values(rows) == {"a": {"x": [1.0, 3.0]}, "b": {"x": [2.0]}}


def means(*values):
    return {chr(ord("a") + place): value for place, value in enumerate(values)}


def test_all_pairs_of_few_methods():
    pairs = chosen_pairs(means(3.0, 1.0, 2.0))
    assert pairs == [("a", "b"), ("a", "c"), ("b", "c")]
    assert scheme(pairs) == ""
    assert len(chosen_pairs(means(*range(ALL_PAIRS_UP_TO)))) == ALL_PAIRS_UP_TO * (ALL_PAIRS_UP_TO - 1) // 2


def test_each_method_is_tested_against_the_baseline_alone():
    pairs = chosen_pairs(means(3.0, 1.0, 2.0), against="b")
    assert pairs == [("a", "b"), ("c", "b")]
    assert scheme(pairs) == "every method against b (the baseline); Holm's correction over 2 tests"
    samples = {name: sample(*values) for name, values in {"a": (1, 2), "b": (3, 5), "c": (4, 4)}.items()}
    tests = paired_tests("loss", samples, "b")
    assert [(test.a, test.b, test.difference.mean) for test in tests] == [("a", "b", -2.5), ("c", "b", 0.0)]
    assert tests[0].difference.p_holm == 1.0, "twice 1 / 2, the smallest p of two seeds"
    del samples["b"]  # a baseline of which a run failed
    assert paired_tests("loss", samples, "b") == []


def test_many_methods_are_tested_against_the_best_and_the_first():
    pairs = chosen_pairs(means(5, 4, 1, 3, 2, 6, 7, 8))
    best = [("c", other) for other in "abdefgh"]
    assert pairs == [*best, *[("a", other) for other in "bdefgh"]]
    assert scheme(pairs) == (
        "every method against c (best mean) and against a (named first); Holm's correction over all 28 pairs, because "
        "the results choose the best one"
    )


def test_the_best_may_have_the_highest_mean():
    assert chosen_pairs(means(5, 4, 1, 3, 2, 6, 7, 8), better=1)[0] == ("h", "a")


def test_the_first_may_be_the_best():
    pairs = chosen_pairs(means(*range(9)))
    assert pairs == [("a", other) for other in "bcdefghi"]
    assert "a (best mean), which is also the one named first; Holm's correction over all 36 pairs" in scheme(pairs)


@given(st.lists(st.floats(-10, 10), max_size=14))
def test_no_pair_twice_and_none_with_itself(values):
    pairs = [frozenset(pair) for pair in chosen_pairs(means(*values))]
    assert len(pairs) == len(set(pairs))
    assert all(len(pair) == 2 for pair in pairs)
    assert len(values) < 2 or {method for pair in pairs for method in pair} == set(means(*values))


# -- Holm ------------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    # sorted .005 .01 .03 .04 -> x4 x3 x2 x1 = .02 .03 .06 .04 -> running maximum .02 .03 .06 .06
    assert holm([0.01, 0.04, 0.03, 0.005], of=4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # With six tests, of which the four smallest p-values are known: x6 x5 x4 x3 = .03 .05 .12 .12
    assert holm([0.01, 0.04, 0.03, 0.005], of=6) == pytest.approx([0.05, 0.12, 0.12, 0.03])
    assert holm([0.6, 0.9], of=2) == [1.0, 1.0]
    assert holm([0.2], of=1) == [0.2]
    assert holm([], of=0) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(raw):
    corrected = holm(raw, len(raw))
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
    assert (test.metric, test.a, test.b, test.difference.seeds) == ("loss", "sfl", "apfl", 5)
    assert test.difference.p == test.difference.p_holm == 6 / 32
    # deviation sqrt(14.8 / 4), 97.5 % quantile of t with 4 degrees of freedom 2.7764
    half = 2.7764 * (14.8 / 4) ** 0.5 / 5**0.5
    assert test.difference.mean == pytest.approx(1.8)
    assert (test.difference.low, test.difference.high) == (
        pytest.approx(1.8 - half, abs=1e-3),
        pytest.approx(1.8 + half, abs=1e-3),
    )


def test_nodes_and_sessions_of_a_seed_do_not_lower_p():
    rows = [run("a", seed, 1.0 + seed, {f"node-{n}": 0.0 for n in range(50)}) for seed in range(3)]
    rows += [run("b", seed, 9.0, {f"node-{n}": 9.0 for n in range(50)}) for seed in range(3)]
    (test,) = all_tests(rows, ["a", "b"], ["test.loss"])
    assert (test.difference.seeds, test.difference.p, test.difference.mean) == (3, 2 / 8, -7.0)
    assert (test.nodes_lower, test.nodes_higher) == (50, 0)


def run(method, seed, loss, nodes=None):
    reported = [{"node": node, "metrics": {"test.loss": value}} for node, value in (nodes or {}).items()]
    return {"method": method, "seed": seed, "metrics": {"loss": loss}, "nodes": reported}


def test_a_rival_that_every_run_measures_is_tested_beside_the_methods():
    """By hand: the rival has 3 and 5, the methods 1 and 2, and 2 and 2."""
    rows = [
        run(method, seed, loss) for method, losses in (("a", (1, 2)), ("b", (2, 2))) for seed, loss in enumerate(losses)
    ]
    for row, rival in zip(rows, (3.0, 5.0, 3.0, 5.0), strict=True):
        row["metrics"]["passive.loss"] = rival
    tests = all_tests(rows, ["a", "b"], ["loss", "passive.loss"], {"loss": ("passive", "passive.loss")})
    means = {(test.a, test.b): test.difference.mean for test in tests}
    assert means == {("a", "b"): -0.5, ("a", "passive"): -2.5, ("b", "passive"): -2.0}


def test_one_seed_tests_nothing():
    (test,) = paired_tests("loss", {"a": sample(1), "b": sample(5)})
    assert (test.difference.seeds, test.difference.p, test.difference.low, test.difference.high) == (1, 1.0, None, None)


def test_signs_are_counted_by_the_mean_of_each_node_over_its_seeds():
    left = {(0, "a"): 1.0, (1, "a"): 1.0, (0, "b"): 5.0, (0, "c"): 1.0, (0, "d"): 2.0, (0, "only here"): 0.0}
    right = {(0, "a"): 4.0, (1, "a"): 0.0, (0, "b"): 1.0, (0, "c"): 1.0, (0, "d"): 3.0}
    (test,) = paired_tests("loss", {"a": sample(1, 1, nodes=left), "b": sample(1, 1, nodes=right)})
    assert (test.nodes_lower, test.nodes_higher) == (2, 1)  # a and d; b; c is a tie


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_method_without_a_finite_value_for_every_seed_is_not_tested(value):
    rows = [run(method, seed, float(seed)) for seed in range(2) for method in "abc"]
    rows[1]["metrics"]["loss"] = value
    assert [(test.a, test.b) for test in all_tests(rows, list("abc"), ["test.loss"])] == [("a", "c")]


def test_every_pair_is_tested_and_corrected_together():
    rng = np.random.default_rng(0)
    samples = {name: sample(*rng.normal(shift, 1, 8)) for name, shift in (("a", 0), ("b", 1), ("c", 3))}
    tests = paired_tests("loss", samples)
    assert [(test.a, test.b) for test in tests] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [test.difference.p_holm for test in tests] == holm([test.difference.p for test in tests], of=3)
    assert any(test.difference.p_holm > test.difference.p for test in tests)


def test_many_methods_are_tested_against_the_one_with_the_highest_accuracy():
    samples = {name: sample(place, place + 1) for place, name in enumerate("abcdefghi")}
    assert {test.a for test in paired_tests("accuracy", samples)} == {"i", "a"}
    assert {test.a for test in paired_tests("loss", samples)} == {"a"}


def test_the_tests_of_the_best_of_many_are_corrected_over_all_pairs():
    """With ten seeds and the same order in each, every p is 1 / 512: the best of 28 pairs, or a baseline of 7."""
    samples = {name: sample(*(place + 10 * seed for seed in range(10))) for place, name in enumerate("abcdefgh")}
    for against, pairs in (("", 28), ("a", 7)):
        tests = paired_tests("loss", samples, against)
        assert len(tests) == 7
        assert {(test.difference.p, test.difference.p_holm) for test in tests} == {(1 / 512, pairs / 512)}
