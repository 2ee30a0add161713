"""Two names for one method: a comparison calls them different no more often than its nominal rate.

Each of 200 repetitions draws two methods with the same distribution, with seven nodes of ten sessions per seed. A share
of the variance lies between the seeds of a method, as training runs differ. Wilcoxon's signed-rank test over all pairs
of sessions, which treats the sessions of a seed as independent, has these errors at the nominal rate of .05:

| variance between seeds | 1 % | 5 % | 20 % |
|---|---|---|---|
| 5 seeds | .110 | .360 | .535 |
| 10 seeds | .160 | .365 | .570 |
"""

import numpy as np
import pytest
from scipy.stats import binom, wilcoxon

from fedapps.comparison.papers import Claim
from fedapps.comparison.significance import Sample, paired_tests, sign_flip_p

REPETITIONS, PAIRS, LEVEL = 200, 70, 0.05
CLAIM = Claim("one is better than other", ["any"], "accuracy", "one", ["other"])
SETTINGS = [(seeds, share) for seeds in (5, 10) for share in (0.01, 0.05, 0.2)]


def most(level):
    """The largest number of errors at this level, exceeded by chance in one of 1000 simulations."""
    return binom.ppf(0.999, REPETITIONS, level)


def draw(seeds, share, effect=0.0):
    """The values of two methods, each [repetitions, seeds, pairs]. ``effect`` is added to the first method."""
    rng = np.random.default_rng((seeds, round(1000 * share)))
    between = rng.normal(0, np.sqrt(share), (2, REPETITIONS, seeds, 1))
    within = rng.normal(0, np.sqrt(1 - share), (2, REPETITIONS, seeds, PAIRS))
    one, other = between + within
    return one + effect, other


def verdicts(one, other):
    pairs = zip(one.mean(axis=2), other.mean(axis=2), strict=True)
    found = [CLAIM.against({"one": {"accuracy": a.tolist()}, "other": {"accuracy": b.tolist()}}) for a, b in pairs]
    return [facts.verdict for facts in found]


@pytest.mark.parametrize(("seeds", "share"), SETTINGS)
def test_p_values_and_verdicts_keep_their_nominal_rate(seeds, share):
    one, other = draw(seeds, share)
    p = sign_flip_p((one - other).mean(axis=2))
    for level in (LEVEL, 1 / 16, 1 / 4):
        assert np.sum(p <= level) <= most(level)
    assert np.sum(p <= 1 / 4) > REPETITIONS / 8  # of half the nominal rate at least: the test is not merely cautious
    assert REPETITIONS - verdicts(one, other).count("within noise") <= most(LEVEL)


@pytest.mark.parametrize(("seeds", "share"), SETTINGS)
def test_a_test_over_sessions_does_not(seeds, share):
    one, other = draw(seeds, share)
    p = wilcoxon((one - other).reshape(REPETITIONS, -1), axis=1).pvalue
    assert np.sum(p <= LEVEL) > most(LEVEL)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.2])
def test_a_large_effect_is_found_with_ten_seeds(share):
    one, other = draw(10, share, effect=1.5)
    assert np.mean(sign_flip_p((one - other).mean(axis=2)) <= LEVEL) > 0.95
    assert verdicts(one, other).count("holds") > 0.95 * REPETITIONS
    assert verdicts(other, one).count("fails") > 0.95 * REPETITIONS


def test_five_seeds_never_reach_the_usual_level():
    one, other = draw(5, 0.01, effect=10.0)
    assert set(sign_flip_p((one - other).mean(axis=2))) == {1 / 16}


def test_identical_results_are_noise():
    same = np.random.default_rng(0).normal(size=(1, 5, PAIRS))
    assert verdicts(same, same) == ["within noise"]
    sample = Sample(same[0].mean(axis=1).tolist(), {})
    (test,) = paired_tests("accuracy", {"one": sample, "other": sample})
    gap = test.difference
    assert (gap.p, gap.p_holm, gap.mean, gap.low, gap.high) == (1, 1, 0, 0, 0)
