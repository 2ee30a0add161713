"""A node as a virtual client: one epoch on a fixed number of examples."""

import numpy as np
import pytest
import torch
from fedapps.tasks.base import NodeData
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import SETTINGS, adaptive_updating, at, initial, node
from toys import ToyTask, same_bits

from fedapps.methods.fedvc import FedVcPart, of_virtual_client


@pytest.mark.parametrize("count", [3, 8, 50])
def test_a_virtual_client_trains_one_epoch_on_this_number_of_examples(tmp_path, count):
    reply = node(tmp_path, FedVcPart(count)).train_round(initial(), at(1, epochs=9))
    assert reply.num_examples == count
    assert reply.metrics["steps"] == -(-count // 4)


def test_the_virtual_clients_of_one_node_see_different_examples(tmp_path):
    first, second, again = (
        node(tmp_path, FedVcPart(3, draw)).train_round(initial(), SETTINGS).arrays for draw in (0, 1, 1)
    )  # fmt: skip
    assert not same_bits(first, second)
    assert same_bits(second, again)


@settings(max_examples=50, deadline=None)
@given(held=st.integers(1, 12), count=st.integers(1, 12), seed=st.integers(0, 9))
def test_no_example_is_drawn_twice_unless_there_are_too_few(held, count, seed):
    data = NodeData("n", {"train": {"x": torch.arange(held), "y": -torch.arange(held)}, "test": {"x": torch.ones(1)}})
    torch.manual_seed(seed)
    drawn = of_virtual_client(data, count)
    x, y = (drawn.splits["train"][name] for name in ("x", "y"))
    assert len(x) == count
    assert torch.equal(x, -y)
    assert set(x.tolist()) <= set(range(held))
    if count <= held:
        assert len(set(x.tolist())) == count
    assert drawn.splits["test"] is data.splits["test"]


@pytest.mark.parametrize("order", [1, -1])
def test_only_the_joint_phase_is_one_epoch_long(tmp_path, order):
    """Of 4 examples in batches of 4: 3 epochs of adaptation, then 1 joint epoch."""
    parts = [FedVcPart(4), adaptive_updating(3)][::order]
    reply = node(tmp_path, *parts).train_round(initial(["encoder.weight"]), at(1, epochs=9))
    assert reply.metrics["steps"] == 3 + 1


def test_all_examples_in_one_epoch_are_those_of_the_node():
    """As many as the node has: the same examples, in another order."""
    data = ToyTask().data(1)
    drawn = of_virtual_client(data, data.count("train"))
    found, expected = (np.sort(d.splits["train"]["y"].numpy().ravel()) for d in (drawn, data))
    np.testing.assert_array_equal(found, expected)
