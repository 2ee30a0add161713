"""What other nodes learned, read from a message of FedWeIT."""

import numpy as np
import pytest
from decomposed_nodes import initial, node
from fedapps.clients.knowledge import Knowledge
from flwr.app import ConfigRecord, RecordDict
from toy_nodes import at
from toys import record_of, same_bits


def content(models, **order):
    records = RecordDict({"fedweit": ConfigRecord(order)} if order else {})
    for index, arrays in enumerate(models):
        records[f"fedweit.knowledge.{index}"] = record_of(arrays)
    return records


def test_knowledge_is_read_from_a_message():
    assert Knowledge.read(RecordDict({"arrays": record_of(initial())})) == Knowledge()
    found = Knowledge.read(content([initial(), initial()], stage=2, keys=["a", "b"]))
    assert (found.stage, found.keys) == (2, ("a", "b"))
    assert all(same_bits(arrays, initial()) for arrays in found.adaptive)


def test_a_malformed_message_is_an_error():
    with pytest.raises(ValueError, match=r"fedweit\.knowledge\.1, of node b: must come as an ArrayRecord"):
        Knowledge.read(content([initial()], stage=2, keys=["a", "b"]))
    with pytest.raises(ValueError, match="fedweit stage = None, keys = None: must be an integer and a list"):
        Knowledge.read(content([], other=1))


@pytest.mark.parametrize(
    ("lent", "told"),
    [
        (Knowledge(1, ("a",), ({"tail": np.ones(1)},)), "what node a learned: 'tail' is no weight of the model"),
        (Knowledge(1, ("a",), ({"head.weight": np.ones(2)},)), r"'head.weight' is \[2\], not \[1, 2\]"),
        (Knowledge(2, ("a",), (initial(),)), "fedweit stage = 2: must be 1, as in the message's config"),
    ],
)
def test_knowledge_that_does_not_fit_is_an_error(tmp_path, lent, told):
    with pytest.raises(ValueError, match=told):
        node(tmp_path, "fedweit", knowledge=lent).train_round(initial(), at(1, 1))
