"""The memory of the server while nodes attack it: a small multiple of the model, and one reply."""

import tracemalloc
import weakref

import numpy as np
import pytest
from adding_nodes import START, add_partition
from fedapps.sim.inprocess import InProcessGrid
from fedapps.strategies import loop
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.robust import BLOCK, Krum, Median, MultiKrum, TrimmedMean
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from rogue import MEGABYTE, header, npy, serialised
from toys import arithmetic_app, record_of

MODEL = {"w": np.ones(2 * MEGABYTE, np.float32), "b": np.ones(1000, np.float32)}  # 8 MB
SIZE = sum(array.nbytes for array in MODEL.values())
HONEST, LARGE = record_of(MODEL), record_of({"w": np.zeros(16 * MEGABYTE, np.float32)})
TERABYTE = serialised(npy(header(shape="(274877906944,)"), b"\0" * SIZE))
REPLIES = {
    "honest": {"arrays": HONEST, "fisher.precision": HONEST},
    "eight models": {"arrays": ArrayRecord({**HONEST, **LARGE})},
    "a header that claims a terabyte": {"arrays": ArrayRecord({**HONEST, "w": TERABYTE})},
    "many arrays": {"arrays": ArrayRecord(dict.fromkeys(map(str, range(3000)), serialised(b"\0" * 8)))},
    "an extra record of eight models": {"arrays": HONEST, "fisher.precision": LARGE},
}


def copied(record: ArrayRecord) -> ArrayRecord:
    """The record as if it had just come: with bytes of its own."""
    fresh = {name: b"".join([a.data[:1], memoryview(a.data)[1:]]) for name, a in record.items()}
    return ArrayRecord({n: Array(a.dtype, a.shape, a.stype, fresh[n]) for n, a in record.items()})


def taken_in(strategy: BaseStrategy, reply: str) -> tuple[int, int]:
    """Bytes of a reply of this kind, and the most memory that a training round with six of them takes."""
    sizes = []

    def replies():
        for _ in range(6):
            content = RecordDict({name: copied(record) for name, record in REPLIES[reply].items()})
            content["metrics"] = MetricRecord({"num-examples": 3})
            sizes.append(sum(record.count_bytes() for record in content.values()))
            message = Message(RecordDict(), dst_node_id=1, message_type="train")
            answer = Message(content, reply_to=message)
            del content
            yield answer
            del answer

    strategy._current = strategy._returned = MODEL  # as configure_train leaves it
    tracemalloc.start()
    try:
        if reply == "honest":
            strategy.aggregate_train(1, replies())
        else:
            with pytest.raises(RuntimeError, match="0 usable replies"):
                strategy.aggregate_train(1, replies())
        return max(sizes), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_honest_replies_take_a_few_models():
    reply, peak = taken_in(BaseStrategy(), "honest")
    print(f"\npeak: {peak / SIZE:.1f} models, with one reply of {reply / SIZE:.1f}")
    assert peak < reply + 8 * SIZE


@pytest.mark.parametrize("reply", [name for name in REPLIES if name != "honest"])
def test_a_refused_reply_takes_no_more_than_itself(reply):
    size, peak = taken_in(FisherExchange(others_now=0.5), reply)
    print(f"\npeak: {peak / SIZE:.1f} models, with one reply of {size / SIZE:.1f}")
    assert peak < 1.1 * size + 8 * MEGABYTE


class CountingGrid(InProcessGrid):
    """Counts the replies that somebody still holds."""

    live = most = total = 0

    def pull_messages(self, message_ids):
        for reply in super().pull_messages(message_ids):
            if reply.has_content() and "arrays" in reply.content:
                self.total += 1
                self.live += 1
                self.most = max(self.most, self.live)
                weakref.finalize(reply.content["arrays"], self._freed)
            yield reply

    def _freed(self):
        self.live -= 1


@pytest.mark.parametrize(("immediate", "cache", "most"), [(False, MEGABYTE, 1), (True, 0, 1), (True, MEGABYTE, 6)])
def test_few_replies_are_in_memory_at_a_time(immediate, cache, most, monkeypatch):
    """The server holds one reply at a time. If the nodes are in its process, it holds those that fit in the cache."""
    monkeypatch.setattr(loop, "MAX_CACHED_BYTES", cache)
    grid = CountingGrid(arithmetic_app(add_partition), [{} for _ in range(6)], {})
    grid.immediate = immediate
    BaseStrategy().start(grid, record_of(START), num_rounds=2)
    assert grid.total == 12
    assert grid.most == most
    assert grid.live == 0


@pytest.mark.parametrize("aggregation", [Median(), TrimmedMean(1), Krum(1), MultiKrum(1)], ids=str)
def test_robust_aggregations_take_a_model_per_reply_and_a_few_more(aggregation):
    """Six replies of 8 MB take six models, and the result one more, or three where it is a mean in float64."""
    peak = taken_in(BaseStrategy(aggregation=aggregation), "honest")[1]
    print(f"\npeak: {peak / SIZE:.1f} models")
    assert 6 * SIZE < peak < 9.5 * SIZE
    aggregate = aggregation.start()
    tracemalloc.start()
    try:
        for _ in range(6):
            aggregate.add(MODEL, 1.0)
        kept = tracemalloc.get_traced_memory()[0]
        assert kept == pytest.approx(6 * SIZE, rel=0.01)
        tracemalloc.reset_peak()
        aggregate.result()
        working = 4 * 6 * BLOCK * 8  # a few blocks of six replies
        models = 3 if isinstance(aggregation, MultiKrum) else 1
        assert tracemalloc.get_traced_memory()[1] - kept < models * SIZE + working + 0.1 * MEGABYTE
    finally:
        tracemalloc.stop()
