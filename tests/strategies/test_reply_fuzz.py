"""Replies of nodes, damaged on the wire or made up: the server reads what is valid and refuses the rest."""

import math

import numpy as np
import pytest
from damaged_files import bounded, damaged
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.compression import BFloat16, Compression, ContextMemory, Int8, TopK, compress_reply
from fedapps.strategies.mailbox import Arrival, Flight
from fedapps.strategies.profiles import ExampleLimits, Profile, read_profile
from fedapps.strategies.records import RoundReport
from fedapps.strategies.replies import Reply, ReplyFilter, max_reply_bytes, read_timings
from fedapps.strategies.transport import UNREADABLE
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from toys import record_of

SENT = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([0.5, -0.5], np.float32),
    "n": np.array(3, dtype=np.int64),
}
COMPRESSIONS = {"none": None, "bfloat16": BFloat16(), "int8": Int8(), "topk": TopK(0.5)}
ALL = settings(max_examples=40, suppress_health_check=list(HealthCheck))


def honest(compression: Compression | None) -> RecordDict:
    arrays = {name: array + array.dtype.type(1) for name, array in SENT.items()}
    metrics = MetricRecord({"num-examples": 5, "loss": 0.5, "losses": [0.5, 1.0], "accuracy.count": 3})
    extra = ConfigRecord({"key": "car", "num-examples": 5, "group.city": "oslo", "train": 0.5})
    content = RecordDict({"arrays": record_of(arrays), "metrics": metrics, "profile": extra, "timings": extra})
    reply = Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
    if compression is not None:
        compress_reply(reply, SENT, compression, ContextMemory(Context(1, 1, {}, RecordDict(), {})), Buffers())
    return reply.content


def read(message: Message, phase: str, compression: Compression | None) -> Reply | str:
    """A reply as the server reads it, or why it is refused."""
    report, limits = RoundReport(2), ExampleLimits()
    limit = max_reply_bytes(SENT, 2)
    replies = ReplyFilter(report, phase, float, {}, limit, limits, compression=compression)
    reply = replies.read(Arrival(Flight(1, "", Profile.unknown(1), start=SENT), message))
    return reply or report.refused[0].reason


def take(content: RecordDict, compression: Compression | None) -> None:
    """Read a reply as the server does. What it accepts must be what a strategy can use."""
    message = Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
    profile = read_profile(1, message)
    assert profile is not None
    assert profile.key.isprintable()
    assert profile.num_examples is None or profile.num_examples >= 0
    assert all(0 <= seconds < math.inf for seconds in read_timings(content).values())
    for phase in ("train", "evaluate"):
        reply = read(message, phase, compression)
        if isinstance(reply, str):
            assert reply, "a reason"
            continue
        assert 0 < reply.weight < math.inf
        for name, array in reply.arrays.items():
            assert (array.shape, np.isfinite(array).all()) == (SENT[name].shape, True)
        assert set(reply.arrays) == set(SENT if phase == "train" else ())


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_an_honest_reply_is_accepted(name):
    content = honest(COMPRESSIONS[name])
    message = Message(content, reply_to=Message(RecordDict(), dst_node_id=1, message_type="train"))
    assert read(message, "train", COMPRESSIONS[name]).num_examples == 5


@pytest.mark.parametrize("name", COMPRESSIONS)
@ALL
@given(data=st.data())
def test_replies_that_were_damaged_on_the_wire(name, data):
    sent = recorddict_to_proto(honest(COMPRESSIONS[name])).SerializeToString(deterministic=True)
    received = damaged({"reply": sent}, data.draw).get("reply", b"")
    with bounded():
        try:
            proto = ProtoRecordDict()
            proto.ParseFromString(received)
            content = recorddict_from_proto(proto)
        except UNREADABLE:  # as the exchange does
            return
        take(content, COMPRESSIONS[name])


KNOWN = ("w", "b", "n", "num-examples", "loss", "loss.count", "server.x", "key", "group.city", "train")
NAMES = st.sampled_from(KNOWN) | st.text(max_size=5)
NUMBERS = (
    st.sampled_from([0, -1, 1, 2**53, 2**62, -(2**63), 0.0, -0.0, 1e308, math.nan, math.inf, -math.inf])
    | st.integers(-9, 9)
    | st.floats()
)
ARRAYS = npst.arrays(
    st.sampled_from(["f4", "f8", "f2", "i8", "i1", "?", "c8", ">f4", "U3", "M8[s]"]),
    st.sampled_from([(), (2,), (2, 3), (0,), (1, 2, 3), (6,)]),
)
RECORDS = st.one_of(
    st.dictionaries(NAMES, ARRAYS.map(Array), max_size=4).map(ArrayRecord),
    st.dictionaries(NAMES, NUMBERS | st.lists(st.floats(), max_size=3), max_size=5).map(MetricRecord),
    st.dictionaries(NAMES, NUMBERS | st.booleans() | st.text(max_size=9) | st.binary(max_size=9), max_size=5).map(
        ConfigRecord
    ),
)
PLACES = st.sampled_from(["arrays", "metrics", "profile", "timings", "compressed.values", "compressed.places", "other"])


@pytest.mark.parametrize("name", COMPRESSIONS)
@ALL
@given(records=st.dictionaries(PLACES | st.text(max_size=3), RECORDS, min_size=1, max_size=4), dropped=st.sets(PLACES))
def test_replies_that_were_made_up(name, records, dropped):
    content = honest(COMPRESSIONS[name])
    for record in dropped & set(content):
        del content[record]
    for record, value in records.items():
        content[record] = value
    with bounded():
        take(content, COMPRESSIONS[name])
