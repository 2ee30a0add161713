"""Flower's arrays without ``np.save`` and ``np.load``: the same bytes, arrays and errors."""

import numpy as np
import pytest
from fedapps.sim.direct_arrays import direct_arrays
from fedapps.sim.inprocess import run_inprocess
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.client import ClientApp
from flwr.serverapp import ServerApp

ARRAYS = {
    "matrix": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12)[::3],
    "0-d": np.array(-0.0),
    "empty": np.zeros((0, 3), np.float16),
    "booleans": np.array([True, False]),
    "big-endian": np.arange(3, dtype=">i4"),
    "dates": np.array(["2026-01-01"], dtype="datetime64[D]"),
    "text": np.array(["a", "bc"]),
    "fields": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
}
BAD = {
    "nothing": Array("float32", (1,), "numpy.ndarray", b""),
    "noise": Array("float32", (1,), "numpy.ndarray", b"noise"),
    "other kind": Array("float32", (1,), "somebody.else", b"1234"),
    "too short": Array("float32", (2,), "numpy.ndarray", Array(np.zeros(2, np.float32)).data[:-1]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_bytes_and_arrays_are_flowers(name):
    usual = Array(ARRAYS[name])
    with direct_arrays():
        direct, decoded = Array(ARRAYS[name]), usual.numpy()
    assert type(direct) is Array
    assert direct == usual
    assert direct.object_id == usual.object_id
    expected = usual.numpy()
    assert (decoded.dtype, decoded.shape, decoded.flags.f_contiguous) == (
        expected.dtype,
        expected.shape,
        expected.flags.f_contiguous,
    )
    assert decoded.tobytes() == expected.tobytes()
    assert decoded.flags.writeable


@pytest.mark.parametrize("name", BAD)
def test_errors_are_flowers(name):
    with pytest.raises(Exception) as usual:  # noqa: PT011 - whatever Flower raises
        BAD[name].numpy()
    with direct_arrays(), pytest.raises(type(usual.value)) as direct:
        BAD[name].numpy()
    assert str(direct.value) == str(usual.value)


def test_objects_are_refused():
    with direct_arrays(), pytest.raises(ValueError, match="allow_pickle=False"):
        Array(np.array([object()]))


def test_the_methods_are_given_back():
    before = dict(Array.__dict__)
    with pytest.raises(ArithmeticError), direct_arrays():
        raise ArithmeticError
    assert dict(Array.__dict__) == before


def test_a_node_that_writes_into_what_it_received_changes_nothing_elsewhere():
    """Each node overwrites the arrays that it received, and after its reply those that it sent."""
    app, server, seen, own = ClientApp(), ServerApp(), [], []

    @app.train()
    def train(message, context):
        for array in own:
            array[:] = -1  # the arrays that the node before has sent
        received = message.content["arrays"]["w"].numpy()
        seen.append(received.tolist())
        received[:] = 99
        message.content["arrays"]["w"].data = b""
        message.content["metrics"]["list"].append(3.0)
        own.append(np.full(2, len(seen), np.float32))
        content = {"arrays": ArrayRecord({"w": Array(own[-1])}), "metrics": MetricRecord({"n": 1})}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def main(grid, context):
        content = RecordDict(
            {"arrays": ArrayRecord({"w": Array(np.array([1.0, 2.0]))}), "metrics": MetricRecord({"list": [1.0, 2.0]})}
        )
        nodes = grid.get_node_ids()
        replies = list(grid.send_and_receive([Message(content, dst_node_id=n, message_type="train") for n in nodes]))
        assert [reply.content["arrays"]["w"].numpy().tolist() for reply in replies] == [[1, 1], [2, 2], [3, 3]]
        assert content["arrays"]["w"].numpy().tolist() == [1.0, 2.0]
        assert content["metrics"]["list"] == [1.0, 2.0]

    run_inprocess(server, app, num_nodes=3)
    assert seen == [[1.0, 2.0]] * 3
