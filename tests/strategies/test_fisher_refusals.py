"""FisherExchange: parameters that are errors, and replies that are refused."""

import re

import numpy as np
import pytest
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.rounds.records import TooFewRepliesError
from fisher_nodes import FOUND, SURE, published, steady, trained
from flwr.app import ConfigRecord
from toys import arrays_of, record_of

pytestmark = pytest.mark.usefixtures("flower_identity")


@pytest.mark.parametrize("key", ["own_past", "others_past", "others_now"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_a_lambda_below_zero_or_not_finite_is_an_error(key, value):
    with pytest.raises(ValueError, match=f"{key} = {value}: must be a finite number, at least 0"):
        FisherExchange(**{key: value})


@pytest.mark.parametrize(("key", "allowed"), [("anchors", "'online', 'separate'"), ("estimator", "'per-sample', ")])
def test_an_unknown_choice_is_an_error_that_lists_the_known(key, allowed):
    with pytest.raises(ValueError, match=f"{key} = 'other': must be one of {allowed}"):
        FisherExchange(**{key: "other"})


def test_a_stage_that_is_no_integer_is_an_error():
    with pytest.raises(ValueError, match="config stage = '2': must be an integer"):
        trained(FisherExchange(others_now=1.0), train_config=ConfigRecord({"stage": "2"}))


def reply_with(precision):
    reply = published(FOUND[2], SURE[2])
    if precision is None:
        del reply["fisher.precision"]
    else:
        reply["fisher.precision"] = record_of(precision)
    return reply


@pytest.mark.parametrize(
    ("precision", "reason"),
    [
        (None, "no ArrayRecord of this name in the reply"),
        ({"w": np.array([1, -1], np.float32)}, "values are below 0: w"),
        ({"w": np.array([1, np.nan], np.float32)}, r"values are not finite: w \(1 of 2\)"),
        ({"w": np.array([np.inf, 1], np.float32)}, r"values are not finite: w \(1 of 2\)"),
        ({"w": np.ones(3, np.float32)}, r"w is \[3\] instead of \[2\]"),
        ({"w": np.ones(2)}, "w is float64 instead of float32"),
        ({"v": np.ones(2, np.float32)}, "missing w; unexpected v"),
        ({"w": np.ones(2, np.float32), "steps": np.array(1)}, "unexpected steps"),
        ({}, "missing w"),
    ],
)
def test_a_precision_that_cannot_be_used_is_refused_and_the_round_goes_on(precision, reason):
    reports = []

    def train(partition, arrays, config):
        return reply_with(precision) if partition == 2 else steady(partition, arrays, config)

    result, priors = trained(FisherExchange(others_now=1.0), train, on_round=reports.append)
    for report in reports:
        (refusal,) = report.refused
        assert refusal.node == "part-2"
        assert re.search(reason, refusal.reason)
        assert refusal.reason.startswith("fisher.precision: ")
        assert report.replies == 2
        assert report.bytes_up > 0
    np.testing.assert_array_equal(arrays_of(result.arrays)["w"], [2.0, 0.5])  # of nodes 0 and 1
    assert priors[2, 0] == ([2.0, 4.0], [6.0, -4.0])
    assert priors[2, 2] == ([3.0, 4.0], [7.0, -4.0])  # the refused node is still held by the others


def test_a_refused_reply_leaves_what_the_node_published_before():
    def train(partition, arrays, config):
        bad = partition == 2 and config["server-round"] == 2
        return reply_with({"w": np.array([-1, -1], np.float32)}) if bad else steady(partition, arrays, config)

    _, priors = trained(FisherExchange(others_now=1.0), train, num_rounds=3)
    assert priors[3, 0] == ([2.5, 5.0], [5.0, 0.0])


def test_an_arrays_fault_is_still_named():
    def train(partition, arrays, config):
        return published([np.nan, 0], SURE[2]) if partition == 2 else steady(partition, arrays, config)

    reports = []
    trained(FisherExchange(others_now=1.0), train, on_round=reports.append)
    assert [refusal.reason for refusal in reports[1].refused] == ["values are not finite: w (1 of 2)"]


def test_too_few_usable_precisions_fail_the_round():
    with pytest.raises(TooFewRepliesError, match=r"part-0: fisher\.precision: no ArrayRecord"):
        trained(FisherExchange(others_now=1.0), lambda k, arrays, config: reply_with(None))
