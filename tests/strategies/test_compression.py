"""Compressed updates: numbers by hand, error feedback, torch as an oracle, hostile records, whole federations."""

import re

import numpy as np
import pytest
import torch
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import (
    COMPRESSION_NAMES,
    BFloat16,
    Int8,
    TopK,
    compress_reply,
    compression_by_name,
    compression_mod,
    declared_buffers,
    requested,
)
from fedapps.strategies.replies import shared_arrays
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

ALL = [BFloat16(), Int8(), TopK(0.4), TopK(1.0)]
LOSSY = [Int8(), TopK(0.01), TopK(0.4)]


class Memory:
    def __init__(self):
        self.error = {}

    def load(self):
        return self.error

    def save(self, error):
        self.error = error


def reply_with(arrays):
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = RecordDict({"arrays": record_of(arrays), "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=asked)


def round_trip(compression, sent, trained, memory=None):
    """What the server restores of a node's reply."""
    reply = reply_with(trained)
    compress_reply(reply, sent, compression, memory or Memory(), Buffers())
    return shared_arrays(reply.content, sent, compression, Buffers())


def updates(dtype="float32"):
    elements = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5), elements=elements)


# -- numbers -------------------------------------------------------------------------------------------------


def test_bf16_by_hand():
    # One unit in the last place of bf16 at 1 is 2^-7: ties go to even multiples of it.
    update = {"w": np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -2.5, 0.0, 2.0**-140])}
    restored = BFloat16().decode(BFloat16().encode(update), update)["w"]
    assert restored.tolist() == [1, 1 + 2**-6, 1 + 2**-7, -2.5, 0, 0]
    assert BFloat16().encode({"w": np.array([1.0, -1.0])})["compressed.values"]["w"].tolist() == [0x3F80, 0xBF80]
    memory = Memory()
    sent, trained = ({"w": np.array([value], np.float32)} for value in (0.0, 1 + 2**-8))
    assert round_trip(BFloat16(), sent, trained, memory)["w"].tolist() == [1]
    assert memory.error == {}


@given(updates())
def test_bf16_is_that_of_torch(update):
    restored = BFloat16().decode(BFloat16().encode({"w": update}), {"w": update})["w"]
    expected = torch.from_numpy(np.asarray(update)).bfloat16().double().numpy()
    np.testing.assert_array_equal(restored, expected)


def test_int8_by_hand():
    records = Int8().encode(
        {"w": np.array([[-254.0, 3.0], [1.0, 5.1]]), "still": np.zeros(2), "none": np.zeros((0, 3))}
    )
    assert records["compressed.steps"]["w"] == 2
    assert records["compressed.values"]["w"].tolist() == [[-127, 2], [0, 3]]  # 1.5 and 0.5 go to the even numbers
    restored = Int8().decode(records, {"w": np.zeros((2, 2)), "still": np.zeros(2), "none": np.zeros((0, 3))})
    assert restored["w"].tolist() == [[-254, 4], [0, 6]]
    assert restored["still"].tolist() == [0, 0]
    assert restored["none"].shape == (0, 3)
    with pytest.raises(ValueError, match=r"compressed\.values: the names differ from those sent: none, still"):
        Int8().decode(records, {"w": np.zeros((2, 2))})
    # the step of 2e-43 / 127 is rounded down to the least float32, 1.4e-45, of which there are 143
    assert Int8().encode({"w": np.array([2e-43])})["compressed.values"]["w"].tolist() == [127]


@given(updates("float64"))
def test_the_error_of_int8_is_at_most_half_a_step(update):
    records = Int8().encode({"w": update})
    step = float(records["compressed.steps"]["w"])
    error = np.abs(Int8().decode(records, {"w": update})["w"] - update)
    assert (error <= step / 2 * (1 + 1e-4) + 1e-38).all()  # the step is rounded to a float32


def test_top_k_by_hand():
    update = {"w": np.array([[1.0, -5.0], [3.0, 5.0]]), "b": np.array([2.0, -2.0, 2.0]), "scalar": np.array(-7.0)}
    records = TopK(0.5).encode(update)
    assert records["compressed.places"]["w"].tolist() == [1, 3]
    assert records["compressed.values"]["w"].tolist() == [-5, 5]
    assert records["compressed.places"]["b"].tolist() == [0, 1]  # 1.5 rounded up; of equal changes the first
    assert records["compressed.places"]["scalar"].tolist() == [0]
    restored = TopK(0.5).decode(records, update)
    assert restored["w"].tolist() == [[0, -5], [0, 5]]
    assert restored["scalar"] == -7


def test_error_feedback_by_hand():
    """Two rounds of the largest of two values: what was left out in the first is sent in the second."""
    memory, sent = Memory(), {"w": np.array([10.0, 20.0], np.float32)}
    first = round_trip(TopK(0.5), sent, {"w": np.array([13.0, 22.0], np.float32)}, memory)
    assert first["w"].tolist() == [13, 20]
    assert memory.error["w"].tolist() == [0, 2]
    second = round_trip(TopK(0.5), sent, {"w": np.array([11.0, 20.5], np.float32)}, memory)
    assert second["w"].tolist() == [10, 22.5]
    assert memory.error["w"].tolist() == [1, 0]
    # 2⁻³⁰ − 1 is rounded to −1 in the values that are sent, and not before
    rounded = Memory()
    round_trip(TopK(1.0), {"w": np.ones(1, np.float32)}, {"w": np.array([2**-30], np.float32)}, rounded)
    assert rounded.error["w"].tolist() == [2**-30]


def test_an_error_of_another_form_is_ignored():
    memory = Memory()
    memory.error = {"w": np.ones(3, np.float32)}
    sent = {"w": np.zeros(2, np.float32)}
    assert round_trip(TopK(1.0), sent, {"w": np.ones(2, np.float32)}, memory)["w"].tolist() == [1, 1]


def test_the_error_of_an_array_waits_until_the_array_is_trained_again():
    memory = Memory()
    first = round_trip(TopK(0.5), {"a": np.zeros(2, np.float32)}, {"a": np.array([3, 2], np.float32)}, memory)
    other = round_trip(TopK(0.5), {"b": np.zeros(2, np.float32)}, {"b": np.array([1, 4], np.float32)}, memory)
    again = round_trip(TopK(0.5), {"a": np.zeros(2, np.float32)}, {"a": np.array([1, 0.5], np.float32)}, memory)
    assert [first["a"].tolist(), other["b"].tolist(), again["a"].tolist()] == [[3, 0], [0, 4], [0, 2.5]]
    assert {name: error.tolist() for name, error in memory.error.items()} == {"a": [1, 0], "b": [1, 0]}


# -- invariants ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", LOSSY, ids=str)
@given(rounds=st.lists(hnp.arrays("float32", (3, 2), elements=st.floats(-100, 100, width=32)), min_size=1, max_size=6))
def test_with_error_feedback_what_was_sent_and_the_error_are_all_updates(compression, rounds):
    memory, sent = Memory(), {"w": np.zeros((3, 2), np.float32)}
    restored = [round_trip(compression, sent, {"w": update}, memory)["w"].astype(float) for update in rounds]
    total = sum(update.astype(float) for update in rounds)
    np.testing.assert_allclose(sum(restored) + memory.error["w"], total, atol=1e-3)


@pytest.mark.parametrize("compression", ALL, ids=str)
@given(updates())
def test_a_restored_reply_has_the_form_of_what_was_sent_and_no_update_stays_none(compression, array):
    sent = {"w": np.asarray(array), "v": np.ones(2, np.float16)}
    assert same_bits(round_trip(compression, sent, sent), sent)


@given(updates())
def test_top_k_with_all_values_restores_the_reply(trained):
    sent = {"w": np.zeros(trained.shape, np.float32)}
    assert same_bits(round_trip(TopK(1.0), sent, {"w": np.asarray(trained)}), {"w": np.asarray(trained)})


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ({"w": np.zeros(3, np.float32)}, "differ from those received"),
        ({"v": np.zeros(2, np.float32)}, "differ from those received"),
        ({"w": np.array([0, np.nan], np.float32)}, "values are not finite in float32: w"),
        ({"w": np.array([0, 1e39])}, "values are not finite in float32: w"),
    ],
)
def test_a_reply_that_cannot_be_compressed_is_an_error_that_later_replies_do_not_inherit(trained, message):
    memory, (dtype,) = Memory(), {array.dtype for array in trained.values()}
    with pytest.raises(ValueError, match=message):
        compress_reply(reply_with(trained), {"w": np.zeros(2, dtype)}, Int8(), memory, Buffers())
    assert not memory.error


# -- strategies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5])
def test_the_share_is_checked(share):
    with pytest.raises(ValueError, match=r"share = .*: must be above 0 and at most 1"):
        TopK(share)


START = {"w": np.array([1.0, 2.0, -3.0, 0.5], np.float32), "steps": np.array(0, np.int64)}


def compressing(train, seen=None):
    """The app of a foreign project that has the mod."""
    plain, app = arithmetic_app(train, seen=seen), ClientApp()
    app.train(mods=[compression_mod])(lambda message, context: plain(message, context))
    app.evaluate()(lambda message, context: plain(message, context))
    app.query("profile")(lambda message, context: plain(message, context))
    return app


def step(partition, arrays, config):
    moved = arrays["w"] + np.float32(0.25) * (partition + 1) * np.array([4, -2, 1, 0.5], np.float32)
    return {"w": moved, "steps": arrays["steps"] + 1}, {"num-examples": 2}


@pytest.mark.parametrize(
    ("app", "warned"), [(compressing(step), 0), (arithmetic_app(step), 3)], ids=["with the mod", "without it"]
)
def test_top_k_with_all_values_is_fedavg(app, warned, caplog):
    """The numbers are sums of powers of two, so that no difference is rounded."""
    plain = federate(BaseStrategy(), arithmetic_app(step), START, num_nodes=3, num_rounds=3)
    result = federate(BaseStrategy(compression=TopK(1.0)), app, START, num_nodes=3, num_rounds=3)
    assert same_bits(arrays_of(result.arrays), arrays_of(plain.arrays))
    uncompressed = [line for line in caplog.messages if "is not compressed: its ClientApp has no" in line]
    assert len(uncompressed) == warned, "one for each node, in the first round"


def test_nodes_send_few_bytes_and_get_there_by_error_feedback():
    """Each round sends the largest of four changes; after many rounds all values have moved."""
    reports = {}

    def run(name, compression):
        strategy, reports[name] = BaseStrategy(compression=compression), []
        wide = {"w": np.zeros(1000, np.float32)}
        options = {"num_nodes": 2, "num_rounds": 40, "on_round": reports[name].append}
        return arrays_of(federate(strategy, compressing(towards_ramp), wide, **options).arrays)["w"]

    def towards_ramp(partition, arrays, config):
        return {"w": arrays["w"] + np.float32(0.2) * (ramp - arrays["w"])}, {"num-examples": 1}

    ramp = np.linspace(0.5, 1, 1000, dtype=np.float32)
    finals = {
        name: run(name, c)
        for name, c in (("none", None), ("int8", Int8()), ("bf16", BFloat16()), ("top-k", TopK(0.25)))
    }
    for name in ("none", "int8", "bf16", "top-k"):
        assert np.abs(finals[name] - ramp).max() < 0.15, name
    size = {name: reports[name][0].bytes_up / reports["none"][0].bytes_up for name in reports}
    assert 0.5 <= size["bf16"] < 0.6
    assert 0.25 <= size["int8"] < 0.4
    assert 0.5 <= size["top-k"] < 0.65  # a quarter of the values, with their places


def test_nodes_compress_only_where_the_server_asks():
    asked = Message(RecordDict({"config": ConfigRecord({"lr": 0.1})}), dst_node_id=1, message_type="train")
    assert requested(asked) is None
    plain = Message(RecordDict({"config": ConfigRecord({"compression": "top-k"})}), 1, "train")
    assert requested(plain) == TopK(1.0), "without a share, all values"
    for name in COMPRESSION_NAMES:
        config = ConfigRecord(compression_by_name(name, 0.5).train_config())
        assert requested(Message(RecordDict({"config": config}), 1, "train")) == compression_by_name(name, 0.5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"compression": "zip"}, "compression = 'zip': must be one of 'bf16', 'int8', 'top-k'"),
        ({"compression": "top-k", "compression-share": 0.0}, "share = 0.0: must be above 0 and at most 1"),
        ({"compression": "top-k", "compression-share": "all"}, "compression-share = 'all': must be a float"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(config, message):
    with pytest.raises(ValueError, match=message):
        requested(Message(RecordDict({"config": ConfigRecord(config)}), 1, "train"))


def test_without_arrays_in_the_message_there_is_nothing_to_compress():
    config = ConfigRecord({"compression": "bf16"})
    message = Message(RecordDict({"config": config}), 1, "train")
    with pytest.raises(ValueError, match="the message has no ArrayRecord 'arrays', only: config"):
        compression_mod(message, Context(1, 1, {}, RecordDict(), {}), lambda *_: pytest.fail("it trains"))
    message.content["arrays"] = record_of({"w": np.zeros(1)})
    failed = Message(Error(0, "out of memory"), reply_to=message)
    assert compression_mod(message, Context(1, 1, {}, RecordDict(), {}), lambda *_: failed) is failed


def test_arrays_that_are_not_trained_are_not_missed():
    config = ConfigRecord({"compression": "bf16", "untrained": ["frozen"]})
    arrays = record_of({"w": np.zeros(1, np.float32), "frozen": np.zeros(1, np.float32)})
    message = Message(RecordDict({"config": config, "arrays": arrays}), 1, "train")
    content = RecordDict({"arrays": record_of({"w": np.ones(1, np.float32)})})
    reply = compression_mod(message, Context(1, 1, {}, RecordDict(), {}), lambda *_: Message(content, reply_to=message))
    assert list(reply.content["compressed.values"]) == ["w"]


def test_declared_buffers_are_names_and_no_patterns():
    config = ConfigRecord({"buffers": ["ema*"]})
    declared = declared_buffers(Message(RecordDict({"config": config}), 1, "train"))
    assert ["ema*" in declared, "ema.w" in declared, "n.running_var" in declared] == [True, False, True]


# -- hostile replies -----------------------------------------------------------------------------------------

GOOD_PLACES, GOOD_VALUES = np.array([0, 2], np.uint32), np.ones(2, np.float32)
HOSTILE = {
    "beyond the end": (TopK(0.5), {"places": np.array([0, 4], np.uint32), "values": GOOD_VALUES}, "must ascend and be"),
    "twice": (TopK(0.5), {"places": np.array([2, 2], np.uint32), "values": GOOD_VALUES}, "must ascend and be below 4"),
    "floats as places": (TopK(0.5), {"places": GOOD_VALUES, "values": GOOD_VALUES}, "places of w is float32"),
    "more values": (TopK(0.5), {"places": GOOD_PLACES, "values": np.ones(3, np.float32)}, r"w is float32\[3\] instead"),
    "no places": (TopK(0.5), {"values": GOOD_VALUES}, "compressed.places: the names differ from those sent: w"),
    "wild": (TopK(0.5), {"places": GOOD_PLACES, "values": np.array([1, np.inf], np.float32)}, "values are not finite"),
    "far": (TopK(0.5), {"places": GOOD_PLACES, "values": np.full(2, 1e20, np.float32)}, "values are too far from"),
    "wild step": (
        Int8(), {"values": np.ones(4, np.int8), "steps": np.array(np.nan, np.float32)}, "values are not finite",
    ),
    "two steps": (Int8(), {"values": np.ones(4, np.int8), "steps": GOOD_VALUES}, r"step of w is float32\[2\]"),
    "another compression": (Int8(), {"places": GOOD_PLACES, "values": GOOD_VALUES}, "compressed.steps: the names"),
    "bf16 of infinity": (BFloat16(), {"values": np.full(4, 0x7F80, np.uint16)}, "values are not finite"),
    "another shape": (BFloat16(), {"values": np.zeros((2, 2), np.uint16)}, r"w is uint16\[2, 2\] instead of"),
}  # fmt: skip


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_reply_that_cannot_be_restored_is_refused_and_costs_the_others_nothing(fault):
    compression, records, reason = HOSTILE[fault]
    reports = []

    def hostile(partition, arrays, config):
        if partition:
            return step(partition, arrays, config)
        content = {f"compressed.{name}": record_of({"w": array}) for name, array in records.items()}
        others = {"arrays": record_of({"steps": arrays["steps"]}), "metrics": MetricRecord({"num-examples": 2})}
        return RecordDict({**content, **others})

    def run(app, nodes):
        strategy = BaseStrategy(profiles=True, compression=compression)
        return federate(strategy, app, START, num_nodes=nodes, num_rounds=1, on_round=reports.append)

    honest = arithmetic_app(lambda partition, *given: step(partition + 1, *given))
    alone = run(honest, 2)
    together = run(arithmetic_app(hostile), 3)
    (refusal,) = reports[-1].refused
    assert refusal.node == "part-0"
    assert re.search(reason, refusal.reason)
    assert same_bits(arrays_of(together.arrays), arrays_of(alone.arrays))
