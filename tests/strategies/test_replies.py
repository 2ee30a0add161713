"""Replies as a round takes them in: what is refused is told, and nothing is held longer than needed."""

import logging
import re
import weakref

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.nodes.admission import ExampleLimits
from fedapps.strategies.nodes.profiles import Profile
from fedapps.strategies.replies import ReplyFilter, weighting
from fedapps.strategies.rounds.records import RoundReport, TooFewRepliesError
from fedapps.strategies.rounds.transport import NodeFailure
from flwr.app import Array, Message, MetricRecord, RecordDict
from toys import arithmetic_app, arrays_of, federate, record_of

pytestmark = pytest.mark.usefixtures("flower_identity")
EXPECTED = {"w": np.zeros(3, np.float32)}


def reply_filter(report, phase="train"):
    expected = EXPECTED if phase == "train" else None
    return ReplyFilter(
        report, phase, {}, expected, lambda examples: examples, {}, max_bytes=10_000, example_limits=ExampleLimits()
    )


def answer(arrays, examples):
    metrics = MetricRecord({"num-examples": examples, "loss": 0.5})
    message = Message(RecordDict({}), dst_node_id=1, message_type="train")
    return Message(RecordDict({"arrays": record_of(arrays), "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize("phase", ["train", "evaluate"])
def test_no_reply_is_held_while_the_next_one_is_awaited(phase, caplog):
    """Neither a used one nor a refused one, though a log keeps what it was told (as pytest's does)."""
    caplog.set_level(logging.WARNING, logger="flwr")
    made, held = [], []

    def made_anew(examples):
        message = answer(EXPECTED, examples)
        made.append(weakref.ref(message.content["arrays"]))
        return message

    def replies():
        for examples in (2, 0, 0, 3, 0):  # without examples a reply is refused
            yield made_anew(examples)
            held.append(sum(arrays() is not None for arrays in made))

    used, report = [], RoundReport(1)
    for reply in reply_filter(report, phase).usable(replies()):
        used.append(reply.num_examples)
        del reply
    assert used == [2, 3]
    assert len(report.refused) == 3
    assert held == [0] * 5


def test_the_report_tells_of_every_reply():
    report = RoundReport(1)
    mismatch = {"w": np.zeros(4, np.float32)}
    replies = [answer(EXPECTED, 2), NodeFailure(7, "the camera is dark"), answer(mismatch, 2)]
    node = Profile.unknown(replies[0].metadata.src_node_id).key
    assert [reply.weight for reply in reply_filter(report).usable(replies)] == [2]
    (told,) = report.nodes
    assert (told.node, told.phase, told.num_examples, told.metrics) == (node, "train", 2, {"loss": 0.5})
    assert [(r.node, r.phase) for r in report.refused] == [("node-7", "train"), (node, "train")]
    assert report.refused[0].reason == "the camera is dark"
    assert "w" in report.refused[1].reason
    assert report.train_replies == 2  # a failure brings no bytes
    assert report.train_bytes_up == report.bytes_up > 2 * 12


def raises(arrays, metrics):
    raise RuntimeError("the sensor is unplugged")


def with_array(name, change):
    return lambda arrays, metrics: ({**arrays, name: change(arrays[name])}, metrics)


def undecodable(arrays, metrics):
    record = record_of(arrays)
    record["head.w"] = Array(dtype="float32", shape=(1, 1), stype="numpy.ndarray", data=b"no array at all")
    return RecordDict({"arrays": record, "metrics": MetricRecord(metrics)})


FAULTS = {
    "NaN": (with_array("head.w", lambda a: a * np.nan), r"not finite: head\.w \(1 of 1\)"),
    "infinity": (with_array("encoder.w", lambda a: a * np.inf), r"not finite: encoder\.w \(2 of 2\)"),
    "shape": (with_array("head.w", lambda a: a[0]), r"shapes differ: head\.w is \[1\] instead of \[1, 1\]"),
    "dtype": (with_array("head.w", lambda a: a.astype(float)), "float64 instead of float32"),
    "missing name": (lambda a, m: ({"head.w": a["head.w"]}, m), r"missing encoder\.w"),
    "extra name": (lambda a, m: ({**a, "mine": a["head.w"]}, m), "unexpected mine"),
    "no examples": (lambda a, m: (a, {"loss": 0.0}), "num-examples is missing"),
    "zero examples": (lambda a, m: (a, {**m, "num-examples": 0}), "num-examples is 0, not positive"),
    "negative examples": (lambda a, m: (a, {**m, "num-examples": -2.5}), "-2.5, not positive"),
    "list of examples": (lambda a, m: (a, {**m, "num-examples": [1, 2]}), "not a number"),
    "NaN metric": (lambda a, m: (a, {**m, "loss": float("nan")}), "metric 'loss' is nan"),
    "no arrays": (lambda a, m: RecordDict({"metrics": MetricRecord(m)}), "expected one ArrayRecord"),
    "no metrics": (lambda a, m: RecordDict({"arrays": record_of(a)}), "expected one MetricRecord"),
    "undecodable": (undecodable, r"array 'head\.w' cannot be decoded"),
    "exception": (raises, r"(?s)Traceback.*the sensor is unplugged"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_bad_node_is_refused_and_the_others_make_the_mean(fault):
    spoil, reason = FAULTS[fault]

    def train(partition, arrays, config):
        trained, metrics = add_partition(partition, arrays, config)
        return spoil(trained, metrics) if partition == 1 else (trained, metrics)

    reports = []
    result = federate(BaseStrategy(), arithmetic_app(train), START, num_nodes=4, num_rounds=1, on_round=reports.append)
    moved = (1 * 1 + 3 * 3 + 4 * 4) / 8
    np.testing.assert_allclose(arrays_of(result.arrays)["encoder.w"], [1 + moved, 2 + moved], rtol=1e-6)
    (report,) = reports
    (refusal,) = report.refused
    assert (refusal.node, refusal.phase) == ("part-1", "train")
    assert re.search(reason, refusal.reason)
    assert report.replies == 3
    assert [node.node for node in report.nodes if node.phase == "train"] == ["part-0", "part-2", "part-3"]


def test_a_round_without_usable_replies_tells_every_reason():
    def train(partition, arrays, config):
        raise RuntimeError(f"camera {partition} is dark")

    with pytest.raises(TooFewRepliesError) as caught:
        federate(BaseStrategy(), arithmetic_app(train), START, num_nodes=2, num_rounds=1)
    told = str(caught.value)
    assert "round 1: 0 usable replies, but min-replies is 1" in told
    for partition in (0, 1):
        assert f"part-{partition}: Traceback" in told
        assert f"camera {partition} is dark" in told
    assert "test_replies.py" in told  # the node's own traceback


def test_min_replies_counts_usable_replies():
    def train(partition, arrays, config):
        arrays, metrics = add_partition(partition, arrays, config)
        return arrays, {**metrics, "num-examples": partition}  # none at node 0

    app = arithmetic_app(train)
    assert federate(BaseStrategy(min_replies=2), app, START, num_nodes=3, num_rounds=1).arrays is not None
    with pytest.raises(TooFewRepliesError, match="2 usable replies, but min-replies is 3"):
        federate(BaseStrategy(min_replies=3), app, START, num_nodes=3, num_rounds=1)


def test_a_bad_evaluation_is_refused_and_costs_no_round():
    def evaluate(partition, arrays, config):
        return {}, {"num-examples": 2 - 2 * partition, "loss": 0.5 + partition}

    reports = []
    app = arithmetic_app(add_partition, evaluate)
    federate(BaseStrategy(), app, START, num_nodes=2, num_rounds=1, on_round=reports.append)
    assert [(r.node, r.phase) for r in reports[0].refused] == [("part-1", "evaluate")]
    assert reports[0].evaluate == {"loss": 0.5, "num-examples": 2}


def test_by_examples():
    assert [weighting("num-examples")(examples) for examples in (1, 7.5)] == [1.0, 7.5]


def test_uniform():
    assert [weighting("uniform")(examples) for examples in (1, 7.5)] == [1.0, 1.0]


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="weighting = 'size': must be one of num-examples, uniform"):
        weighting("size")
