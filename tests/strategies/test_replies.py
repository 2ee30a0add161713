"""Replies as a round takes them in: what is refused is told, and nothing is held longer than needed."""

import logging
import weakref

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.mailbox import Arrival, Flight
from fedapps.strategies.profiles import ExampleLimits, Profile
from fedapps.strategies.records import RoundReport, TooFewRepliesError
from fedapps.strategies.replies import ReplyFilter, weighting_of
from fedapps.strategies.transport import NodeFailure
from flwr.app import Message, MetricRecord, RecordDict
from toys import arithmetic_app, federate, record_of

EXPECTED = {"w": np.zeros(3, np.float32)}


def reply_filter(report, phase="train"):
    return ReplyFilter(report, phase, lambda examples: examples, {}, max_bytes=10_000, example_limits=ExampleLimits())


def usable(replies, outcomes):
    for outcome in outcomes:
        node = outcome.node_id if isinstance(outcome, NodeFailure) else outcome.metadata.src_node_id
        reply = replies.read(Arrival(Flight(node, "", Profile.unknown(node), start=EXPECTED), outcome))
        del outcome
        if reply is not None:
            yield reply
        del reply


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
    for reply in usable(reply_filter(report, phase), replies()):
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
    assert [reply.weight for reply in usable(reply_filter(report), replies)] == [2]
    (told,) = report.nodes
    assert (told.node, told.phase, told.num_examples, told.metrics) == (node, "train", 2, {"loss": 0.5})
    assert [(r.node, r.phase) for r in report.refused] == [("node-7", "train"), (node, "train")]
    assert report.refused[0].reason == "the camera is dark"
    assert "w" in report.refused[1].reason
    assert report.train_replies == 2  # a failure brings no bytes
    assert report.train_bytes_up == report.bytes_up > 2 * 12


def test_a_round_without_usable_replies_tells_every_reason():
    def train(partition, arrays, config):
        raise RuntimeError(f"camera {partition} is dark")

    with pytest.raises(TooFewRepliesError) as caught:
        federate(BaseStrategy(profiles=True), arithmetic_app(train), START, num_nodes=2, num_rounds=1)
    told = str(caught.value)
    assert "round 1: 0 usable replies, but min_replies is 1 (key min-replies)" in told
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
    with pytest.raises(
        TooFewRepliesError, match=r"2 usable replies, but min_replies is 3 \(key min-replies\): lower it to 2, or let"
    ):
        federate(BaseStrategy(min_replies=3), app, START, num_nodes=3, num_rounds=1)


def test_the_weight_of_a_reply_and_the_known_names_for_an_unknown_one():
    assert [weighting_of("num-examples")(examples) for examples in (1, 7.5)] == [1.0, 7.5]
    assert [weighting_of("uniform")(examples) for examples in (1, 7.5)] == [1.0, 1.0]
    with pytest.raises(ValueError, match="weighting = 'size': must be one of 'num-examples', 'uniform'"):
        weighting_of("size")
