"""Compressed replies: federations, the Flower mod, and replies that cannot be restored."""

import re

import numpy as np
import pytest
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.compression import (
    COMPRESSION_NAMES,
    BFloat16,
    Int8,
    TopK,
    compression_by_name,
    compression_mod,
    requested,
)
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")

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


@pytest.mark.parametrize("app", [compressing(step), arithmetic_app(step)], ids=["with the mod", "without it"])
def test_top_k_with_all_values_is_fedavg(app):
    """The numbers are sums of powers of two, so that no difference is rounded."""
    plain = federate(BaseStrategy(), arithmetic_app(step), START, num_nodes=3, num_rounds=3)
    result = federate(BaseStrategy(compression=TopK(1.0)), app, START, num_nodes=3, num_rounds=3)
    assert same_bits(arrays_of(result.arrays), arrays_of(plain.arrays))


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
        strategy = BaseStrategy(compression=compression)
        return federate(strategy, app, START, num_nodes=nodes, num_rounds=1, on_round=reports.append)

    honest = arithmetic_app(lambda partition, *given: step(partition + 1, *given))
    alone = run(honest, 2)
    together = run(arithmetic_app(hostile), 3)
    (refusal,) = reports[-1].refused
    assert refusal.node == "part-0"
    assert re.search(reason, refusal.reason)
    assert same_bits(arrays_of(together.arrays), arrays_of(alone.arrays))
