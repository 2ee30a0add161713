"""Packed records: the same bits on the way, one array in place of many, and damage that the server refuses."""

from collections.abc import Iterable

import numpy as np
import pytest
from damaged_files import damaged
from fedapps.sim.flower_internals import set_message_id
from fedapps.strategies.base import BaseStrategy
from fedapps.strategies.packing import PACKED, PackedGrid, is_packed, pack, packing_mod, unpack
from fedapps.strategies.transport import NodeFailure, pull, push
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import Grid
from hypothesis import given
from hypothesis import strategies as st
from toys import arithmetic_app, arrays_of, federate, record_of, same_bits

START = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(3)}
ARRAYS = st.builds(
    Array, st.text(max_size=8), st.lists(st.integers(0, 9)).map(tuple), st.text(max_size=8), st.binary(max_size=20)
)


def packed_bytes(data: bytes) -> ArrayRecord:
    return ArrayRecord({"": Array("uint8", (len(data),), PACKED, data)})


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def test_the_bytes_of_a_packed_record():
    record = ArrayRecord({"w": Array("f4", (2,), "raw", b"abc"), "b": Array("i8", (), "raw", b"de")})
    header = b'[["w", "f4", [2], "raw", 3], ["b", "i8", [], "raw", 2]]'
    (array,) = pack(record).values()
    assert array.data == bytes([len(header), 0, 0, 0, 0, 0, 0, 0]) + header + b"abcde"


@given(st.dictionaries(st.text(max_size=8), ARRAYS))
def test_no_bit_changes(arrays):
    record = ArrayRecord(arrays)
    packed = pack(record)
    assert is_packed(packed)
    assert len(packed) == 1
    assert [*unpack(packed).items()] == [*record.items()]


@given(st.data())
def test_a_damaged_record_is_refused_or_has_other_arrays(data):
    bytes_ = damaged({"packed": pack(record_of(START))[""].data}, data.draw).get("packed", b"")
    try:
        arrays = unpack(packed_bytes(bytes_))
    except ValueError:
        return
    assert sum(len(one.data) for one in arrays.values()) < len(bytes_)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 9,
        with_header(b"{}", b"x"),
        with_header(b"[1]"),
        with_header(b"[" * 100_000),
        with_header(b'[["w", "f4", [1], "raw", 2]]', b"x"),
        with_header(b'[["w", "f4", [1], "raw", -1]]', b"x"),
        with_header(b'[["w", "f4", [1], "raw", 0.5]]', b"x"),
        with_header(b'[["w", "f4", "1", "raw", 1]]', b"x"),
        with_header(b'[[["w"], "f4", [1], "raw", 1]]', b"x"),
        with_header(b'[["w", "f4", [], "raw", 0], ["w", "f4", [], "raw", 0]]'),
    ],
)
def test_what_is_no_packed_record_is_refused(data):
    with pytest.raises(ValueError, match="packed arrays cannot be taken apart"):
        unpack(packed_bytes(data))


def run(wrap, *mods) -> tuple[dict[str, np.ndarray], list[ArrayRecord]]:
    """The arrays after two rounds of two nodes, and the records ``arrays`` as they were on the wire."""
    seen: list[ArrayRecord] = []

    def train(partition, arrays, config):
        return {name: array + array.dtype.type(partition) for name, array in arrays.items()}, {"num-examples": 1}

    def on_the_wire(message, context, call_next):
        seen.extend(message.content.array_records.values())
        answer = call_next(message, context)
        seen.extend(answer.content.array_records.values())
        return answer

    app = arithmetic_app(train)
    outer = ClientApp(mods=[on_the_wire, *mods])
    for register in (outer.train, outer.evaluate, lambda: outer.query("profile")):
        register()(app)

    def start(strategy, grid, initial, **options):
        return BaseStrategy.start(strategy, wrap(grid), initial, **options)

    result = federate(BaseStrategy(), outer, START, num_nodes=2, start=start, num_rounds=2)
    return arrays_of(result.arrays), seen


def test_a_run_with_packed_records_has_the_same_bits():
    plain, sent_plain = run(lambda grid: grid)
    packed, sent = run(PackedGrid, packing_mod)
    assert same_bits(plain, packed)
    assert np.array_equal(plain["w"], START["w"] + 1)  # two rounds, half a step each
    assert len(sent) == len(sent_plain) > 0
    assert all(map(is_packed, sent))
    assert not any(map(is_packed, sent_plain))


def test_nodes_with_the_mod_answer_servers_without_packed_records():
    plain, _ = run(lambda grid: grid)
    same, sent = run(lambda grid: grid, packing_mod)
    assert same_bits(plain, same)
    assert not any(map(is_packed, sent))


class Recorded:
    """A grid that keeps what it gets, and answers with the records of ``replies``."""

    run = "the run"

    def __init__(self, *replies: ArrayRecord) -> None:
        self.sent: list[dict[str, ArrayRecord]] = []
        self.replies = replies
        self.messages: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.messages = [*messages]
        self.sent += [{**message.content.array_records} for message in self.messages]
        for number, message in enumerate(self.messages):
            set_message_id(message, str(number))
        return [message.metadata.message_id for message in self.messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        (number,) = map(int, message_ids)
        return [Message(RecordDict({"arrays": self.replies[number]}), reply_to=self.messages[number])]


def test_no_method_of_a_grid_is_forgotten():
    assert {name for name in vars(Grid) if not name.startswith("_")} <= vars(PackedGrid).keys()


def test_a_record_for_several_nodes_is_packed_once_and_stays_as_it_is():
    shared, own = record_of(START), record_of({"w": np.zeros(2)})
    messages = [Message(RecordDict({"arrays": shared, "own": own}), node, "train") for node in (1, 2)]
    grid = Recorded()
    push(PackedGrid(grid), messages)
    first, second = grid.sent
    assert first["arrays"] is second["arrays"]
    assert is_packed(first["own"])
    assert all(message.content["arrays"] is shared and message.content["own"] is own for message in messages)


def test_a_damaged_reply_fails_its_node_alone():
    grid = PackedGrid(Recorded(packed_bytes(b"damaged"), pack(record_of(START))))
    first, second = push(grid, [Message(RecordDict(), node, "train") for node in (1, 2)])
    failure = pull(grid, first)
    assert isinstance(failure, NodeFailure)
    assert failure.by_node
    assert "packed arrays cannot be taken apart" in failure.reason
    answer = pull(grid, second)
    assert isinstance(answer, Message)
    assert same_bits(arrays_of(answer.content["arrays"]), START)
