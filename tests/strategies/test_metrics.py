import math
from dataclasses import dataclass

import numpy as np
import pytest
from fedapps.strategies.aggregation import MetricMean
from fedapps.strategies.robust import Krum, Median, MultiKrum, TrimmedMean
from flwr.app import MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st


def mean_of(*replies, rules=None):
    mean = MetricMean(rules)
    for metrics, weight in replies:
        mean.add(MetricRecord(metrics), weight)
    return dict(mean.result())


def test_a_mean_by_hand():
    result = mean_of(
        ({"num-examples": 1, "loss": 4.0, "accuracy": 1}, 1.0), ({"num-examples": 3, "loss": 2.0, "accuracy": 0}, 3.0)
    )
    assert result == {"num-examples": 4, "loss": 2.5, "accuracy": 0.25}


def test_a_metric_with_its_own_count_is_weighted_by_it():
    result = mean_of(
        ({"num-examples": 100, "test.cost": 1.0, "test.cost.count": 1, "loss": 0.0}, 100.0),
        ({"num-examples": 100, "test.cost": 5.0, "test.cost.count": 3, "loss": 2.0}, 100.0),
    )
    assert result == {"num-examples": 200, "test.cost": 4.0, "test.cost.count": 4, "loss": 1.0}


def test_a_mean_over_nothing_is_left_out():
    result = mean_of(({"num-examples": 1, "cost": 0.0, "cost.count": 0}, 1.0))
    assert result == {"num-examples": 1, "cost.count": 0}


def test_lists_stay_with_the_node():
    result = mean_of(({"num-examples": 1, "per-class": [1.0, 2.0]}, 1.0))
    assert result == {"num-examples": 1}
    assert MetricMean.refusal_reason(MetricRecord({"per-class": [1.0, float("nan")]})) is None


def test_a_metric_missing_from_a_reply_is_averaged_over_the_others():
    result = mean_of(
        ({"num-examples": 1, "loss": 1.0}, 1.0), ({"num-examples": 1, "loss": 2.0, "closed-loop": 7.0}, 1.0)
    )
    assert result == {"num-examples": 2, "loss": 1.5, "closed-loop": 7.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e201])
@pytest.mark.parametrize("part", ["auc", "auc.count"])
def test_a_metric_that_is_not_finite_is_left_out_alone_with_its_count(bad, part):
    sent = MetricRecord({"num-examples": 4, "auc": 0.5, "auc.count": 4.0, "loss": 2.0, "loss.count": 3} | {part: bad})
    if part == "auc.count" and bad in (1e201, -math.inf):  # a count out of its range is refused
        assert "but a count is" in MetricMean.refusal_reason(sent)
        return
    assert MetricMean.refusal_reason(sent) is None
    kept, left_out = MetricMean.split(sent)
    assert dict(kept) == {"num-examples": 4, "loss": 2.0, "loss.count": 3}
    assert str(left_out) == str({"auc": bad})


def test_what_can_be_averaged_is_kept_as_it_is():
    sent = MetricRecord({"num-examples": 4, "auc": 0.5, "losses": [math.nan]})
    kept, left_out = MetricMean.split(sent)
    assert kept is sent
    assert not left_out


# -- rules -----------------------------------------------------------------------------------------------------

RULES = {"global": "geometric", "local": "uniform", "loss": "weighted"}


def test_three_rules_by_hand():
    result = mean_of(
        ({"num-examples": 1, "global": 0.2, "local": 0.2, "loss": 0.2, "other": 0.2}, 1.0),
        ({"num-examples": 3, "global": 0.8, "local": 0.8, "loss": 0.8, "other": 0.8}, 3.0),
        rules=RULES,
    )
    assert result.pop("global") == pytest.approx(0.4, rel=1e-15)  # sqrt(0.2 * 0.8)
    weighted = pytest.approx((0.2 + 3 * 0.8) / 4, rel=1e-15)
    assert result == {"num-examples": 4, "local": 0.5, "loss": weighted, "other": weighted}


def test_names_are_exact():
    metrics = [({"num-examples": 1, "test.acc": 1.0, "acc.test": 1.0}, 1.0), ({"test.acc": 5, "acc.test": 5}, 3.0)]
    assert mean_of(*metrics, rules={"acc": "uniform"}) == {"num-examples": 1, "test.acc": 4.0, "acc.test": 4.0}


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_one_zero_makes_the_geometric_mean_zero(zero, recwarn):
    replies = [({"x": value}, 1.0) for value in (0.5, zero, 2.0, zero)]
    assert mean_of(*replies, rules={"x": "geometric"}) == {"x": 0.0}
    assert not recwarn.list


@pytest.mark.parametrize(("rule", "mean"), [("uniform", 5.0), ("geometric", 4.0)])
def test_counts_weigh_nothing_under_the_plain_rules_but_no_value_is_none(rule, mean):
    replies = [
        ({"x": 2.0, "x.count": 1}, 7.0),
        ({"x": 8.0, "x.count": 1000}, 1.0),
        ({"x": 0.0, "x.count": 0}, 1.0),  # a mean over nothing
        ({"y": 3.0}, 1.0),
    ]
    assert mean_of(*replies, rules={"x": rule}) == {"x": pytest.approx(mean), "x.count": 1001, "y": 3.0}
    assert mean_of(({"x": 0.0, "x.count": 0}, 1.0), rules={"x": rule}) == {"x.count": 0}


def test_many_replies_neither_underflow_nor_overflow():
    small, large = [({"x": 1e-300}, 1.0)] * 5_000, [({"x": 1e300}, 1.0)] * 5_000
    assert mean_of(*small, rules={"x": "geometric"})["x"] == pytest.approx(1e-300, rel=1e-9)
    assert mean_of(*large, rules={"x": "geometric"})["x"] == pytest.approx(1e300, rel=1e-9)
    assert mean_of(*small, *large, rules={"x": "geometric"})["x"] == pytest.approx(1.0, rel=1e-9)


def test_a_negative_value_has_no_geometric_mean():
    metrics = MetricRecord({"local": -0.5, "global": -0.25})
    assert MetricMean.refusal_reason(metrics) is None
    assert MetricMean.split(metrics, RULES)[1] == {"global": -0.25}
    assert not MetricMean.split(MetricRecord({"local": -0.5, "global": 0.0}), RULES)[1]
    with pytest.raises(ValueError, match=r"math domain|positive"):  # never a silent zero
        mean_of((dict(metrics), 1.0), rules=RULES)


def test_a_rule_that_does_not_exist_is_an_error():
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        MetricMean({"loss": "uniform", "accuracy": "harmonic"})
    assert str(caught.value) == (
        "metric_means['accuracy'] = 'harmonic': must be one of 'weighted', 'uniform', 'geometric'"
    )


@pytest.mark.parametrize("name", ["num-examples", "accuracy.count"])
def test_what_is_summed_has_no_rule(name):
    with pytest.raises(ValueError, match=rf"metric_means\['{name}'\] = 'uniform': this metric is always summed"):
        MetricMean({name: "uniform"})


POSITIVE = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(POSITIVE, st.randoms(use_true_random=False))
def test_means_of_positive_values(values, random):
    def means(values):
        replies = [({"g": value, "u": value}, 1.0 + index) for index, value in enumerate(values)]
        return mean_of(*replies, rules={"g": "geometric", "u": "uniform"})

    result = means(values)
    assert result["u"] == pytest.approx(np.mean(values), rel=1e-12)
    assert result["g"] == pytest.approx(np.exp(np.mean(np.log(values))), rel=1e-12)
    assert min(values) * (1 - 1e-12) <= result["g"] <= result["u"] * (1 + 1e-12)
    shuffled = random.sample(values, len(values))
    assert means(shuffled) == {name: pytest.approx(mean, rel=1e-12) for name, mean in result.items()}
    assert means(values[:1] * len(values)) == {"g": pytest.approx(values[0]), "u": pytest.approx(values[0])}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6)), min_size=1, max_size=8))
def test_without_rules_the_bits_are_those_of_a_plain_running_sum(replies):
    total = weights = 0.0
    for value, weight in replies:
        total, weights = total + weight * value, weights + weight
    metrics = [({"x": value, "num-examples": 1}, weight) for value, weight in replies]
    for rules in (None, {}, {"y": "geometric"}, {"x": "weighted"}):
        assert mean_of(*metrics, rules=rules)["x"].hex() == (total / weights).hex()
    alike = [(metrics, 1.0) for metrics, _ in metrics]
    assert mean_of(*alike, rules={"x": "uniform"})["x"].hex() == mean_of(*alike)["x"].hex()


BOUNDS = {
    "is -1, but a count is at least 0": {"loss.count": -1},
    "but a count is at most 2^53": {"loss.count": 2**53 + 2},
    "1001 metrics: at most 1000": dict.fromkeys(map(str, range(1001)), 1.0),
    "100001 numbers": {"losses": [0.0] * 100_001},
    "must have a short, printable name": {"x" * 201: 1.0},
    r"'a\nb': must have": {"a\nb": 1.0},
    "that does not begin with 'server.'": {"server.loss": 1.0},
}


@pytest.mark.parametrize("reason", BOUNDS)
def test_what_cannot_be_averaged_or_kept(reason):
    assert reason in MetricMean.refusal_reason(MetricRecord(BOUNDS[reason]))


def test_what_just_can():
    taken = {"loss": 1e200, "loss.count": 2**53, "x" * 200: -1e200, "losses": [math.nan] * 1000}
    taken |= {"none": -1.0, "none.count": 0}
    assert MetricMean.refusal_reason(MetricRecord(taken)) is None
    mean = mean_of(*[(taken, 2.0**53)] * 1000)
    assert all(math.isfinite(value) for value in mean.values())
    most = {**dict.fromkeys(map(str, range(999)), 1.0), "losses": [0.0] * 99_001}  # 1000 metrics, 100,000 numbers
    assert MetricMean.refusal_reason(MetricRecord(most)) is None


# -- pooled metrics ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """A metric of two sums, which is no mean of the nodes' ratios."""

    size: int = 2

    def value(self, sums):
        return sums[0] / sums[1]


POOLED = {"ratio": Ratio()}


def ratio_reply(*statistics):
    return {"ratio": 0.0, "ratio.count": 1, "ratio.statistics": list(statistics)}


def test_a_pooled_metric_by_hand():
    """1 of 2 and 9 of 10: 10 of 12, while the mean of the ratios is 0.7."""
    found = mean_of((ratio_reply(1.0, 2.0), 5.0), (ratio_reply(9.0, 10.0), 1.0), ({"loss": 2.0}, 1.0), rules=POOLED)
    assert found == {"ratio": pytest.approx(10 / 12), "ratio.count": 2, "loss": 2.0}
    assert mean_of(({"loss": 2.0}, 1.0), rules=POOLED) == {"loss": 2.0}


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1, max_size=10), st.floats(0.1, 100))
def test_a_pooled_metric_depends_on_the_sums_alone(parts, weight):
    together = ratio_reply(*(float(sum(column)) for column in zip(*parts, strict=True)))
    found = mean_of(*((ratio_reply(*map(float, part)), weight) for part in parts), rules=POOLED)
    assert found["ratio"] == pytest.approx(mean_of((together, 1.0), rules=POOLED)["ratio"])


def test_a_pooled_metric_whose_statistics_are_not_finite_is_left_out():
    kept, left_out = MetricMean.split(MetricRecord({**ratio_reply(1.0, math.nan), "loss": 1.0}), POOLED)
    assert dict(kept) == {"loss": 1.0}
    assert list(left_out) == ["ratio"]


# -- robust --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", [Median(), TrimmedMean(1), TrimmedMean(0.2), Krum(1), MultiKrum(0.1)])
@pytest.mark.parametrize("rule", ["weighted", "uniform", "geometric", Ratio()])
@given(honest=st.lists(st.floats(0, 1e6), min_size=4, max_size=9), attack=st.floats(0, 1e200))
def test_one_node_moves_no_metric_out_of_the_honest_ones_whatever_it_claims(aggregation, rule, honest, attack):
    mean = MetricMean({"x": rule}, aggregation.middle)
    for value, count in [(attack, 2**53), *((value, 1) for value in honest)]:
        mean.add(MetricRecord({"x": value, "x.count": count, "x.statistics": [value, 1.0]}), float(count))
    found = mean.result()["x"]
    assert min(honest) <= found * (1 + 1e-9) + 1e-9
    assert found <= max(honest) * (1 + 1e-9) + 1e-9


def test_by_hand_the_middle_of_a_metric():
    values = [4.0, 1.0, 1e9, 2.0]
    assert Median().middle(values) == 3.0
    assert TrimmedMean(1).middle(values) == 3.0
    assert TrimmedMean(0).middle([4.0, 1.0, 2.0]) == 7 / 3
    assert Krum(2).middle([1.0, 5.0]) == 3.0  # too few replies for f = 2: the median
    mean = MetricMean(middle=Median().middle)
    for value, count in ((9.0, 0), (2.0, 1), (4.0, 100)):  # the first has no items
        mean.add(MetricRecord({"x": value, "x.count": count}), 1.0)
    assert dict(mean.result()) == {"x": 3.0, "x.count": 101}


@pytest.mark.parametrize(
    "statistics", [[], [1.0], [1.0, 2.0, 3.0], [1.0, -1.0], [1.0, math.nan], [math.inf, 1.0], [1.0, 1e201], 3.0, None]
)
def test_a_pooled_metric_needs_its_statistics(statistics):
    metrics = {"ratio": 0.5} | ({} if statistics is None else {"ratio.statistics": statistics})
    reason = MetricMean.refusal_reason(MetricRecord(metrics), POOLED)
    assert reason == "metric 'ratio.statistics': must be a list of 2 numbers from 0 to 1e+200"
    assert MetricMean.refusal_reason(MetricRecord(ratio_reply(0.0, 2.0)), POOLED) is None
