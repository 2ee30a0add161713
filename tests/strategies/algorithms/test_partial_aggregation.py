"""Partial aggregation: what is private is settled before the first round, and never travels."""

import re

import numpy as np
import pytest
from adding_nodes import add_partition
from fedapps.strategies.algorithms.partial import PartialAggregation, TrainedInTurn
from fedapps.strategies.base import BaseStrategy
from flwr.app import ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

START = {
    "encoder.w": np.array([1.0, 2.0], np.float32),
    "encoder.b": np.array([0.5], np.float32),
    "head.w": np.array([[4.0]], np.float32),
}


def run(strategy, train=add_partition, start=START, seen=None, **options):
    return federate(strategy, arithmetic_app(train, seen=seen), start, num_nodes=2, **{"num_rounds": 1, **options})


def test_the_shared_part_is_the_weighted_mean_and_no_other_name_travels():
    seen = []
    result = run(PartialAggregation(shared=["encoder.*"]), seen=seen, num_rounds=2)
    for message in seen:
        assert sorted(message.content["arrays"]) == ["encoder.b", "encoder.w"]
    moved = 2 * (1 * 1 + 2 * 2) / 3  # twice the steps 1 and 2 with weights 1 and 2
    arrays = arrays_of(result.arrays)
    assert sorted(arrays) == ["encoder.b", "encoder.w"]
    np.testing.assert_allclose(arrays["encoder.w"], [1 + moved, 2 + moved], rtol=1e-6)
    np.testing.assert_allclose(arrays["encoder.b"], [0.5 + moved], rtol=1e-6)


@settings(max_examples=20, deadline=None)
@given(private=st.sets(st.sampled_from(sorted(START)), min_size=1, max_size=2), rounds=st.integers(1, 3))
def test_it_is_fedavg_on_the_rest(private, rounds):
    """A parameter that the others do not depend on changes nothing when it stays at home."""
    shared = [name for name in START if name not in private]
    part = run(PartialAggregation(shared=shared), num_rounds=rounds)
    whole = run(BaseStrategy(), num_rounds=rounds)
    expected = {name: array for name, array in arrays_of(whole.arrays).items() if name in shared}
    assert same_bits(arrays_of(part.arrays), expected)


@pytest.mark.parametrize(
    ("shared", "told"),
    [
        (["tail.*"], r"pattern 'tail\.\*' matches no parameter; the names are: encoder\.w, encoder\.b, head\.w"),
        (["encoder.*", "Head.*"], r"pattern 'Head\.\*' matches no parameter"),
        (
            ["*"],
            r"shared = \['\*'\]: matches every parameter.*use BaseStrategy \(or Flower's FedAvg\).*encoder\.w.*head",
        ),
        (["encoder.*", "head.?"], r"shared = \['encoder\.\*', 'head\.\?'\]: matches every parameter"),
    ],
)
def test_patterns_that_share_nothing_or_all_are_errors_before_any_round(shared, told):
    seen = []
    with pytest.raises(ValueError, match=told):
        run(PartialAggregation(shared=shared), seen=seen)
    assert not seen


def test_at_least_one_pattern_is_needed():
    with pytest.raises(TypeError, match="shared"):
        PartialAggregation()
    with pytest.raises(ValueError, match=r"shared = \[\]: must name a parameter.*BaseStrategy\(shared=\[\]\)"):
        PartialAggregation(shared=[])
    with pytest.raises(ValueError, match=r"shared = 'encoder\.\*': must be a list"):
        PartialAggregation(shared="encoder.*")


@pytest.mark.parametrize("still", [[], ["head.*"]])
def test_what_is_not_trained_in_turn_is_a_list_of_patterns_for_each_round(still):
    with pytest.raises(ValueError, match=rf"still = {re.escape(repr(still))}: must have a list of patterns for each"):
        TrainedInTurn(still=still)


def test_private_names_in_a_reply_are_refused():
    strategy = PartialAggregation(shared=["encoder.*"])

    def gives_all_away(partition, arrays, config):
        trained, metrics = add_partition(partition, arrays, config)
        return (trained if partition == 0 else trained | {"head.w": START["head.w"]}), metrics

    run(strategy, gives_all_away)
    assert [refusal.reason for refusal in strategy.report.refused] == ["array names differ: unexpected head.w"]


def test_the_summary_tells_what_travels_and_what_stays(monkeypatch):
    lines = []
    monkeypatch.setattr("fedapps.strategies.algorithms.partial.log", lambda level, text, *of: lines.append(text % of))
    start = ArrayRecord({**record_of(START), **record_of({"passes": np.zeros((), np.int64)})})
    run(PartialAggregation(shared=["encoder.*"]), lambda *a: add_partition(*a), start)
    assert lines == ["\t├── sent: 3 parameters in 2 arrays, 12 bytes; not sent: 2 parameters in 2 arrays, 12 bytes"]
