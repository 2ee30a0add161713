"""Replies as a round takes them in: what is refused is told, and nothing is held longer than needed."""

import logging
import weakref

import numpy as np
import pytest
from fedapps.strategies.nodes.admission import ExampleLimits
from fedapps.strategies.nodes.profiles import Profile
from fedapps.strategies.replies import ReplyFilter
from fedapps.strategies.rounds.records import RoundReport
from fedapps.strategies.rounds.transport import NodeFailure
from flwr.app import Message, MetricRecord, RecordDict
from toys import record_of

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
