"""Flower's older face of a node: the numbers of the core, in lists."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import RecordDict
from toy_nodes import SEED, initial
from toys import ToyTask, same_bits

from clients.base import FederatedClient
from clients.round_settings import RoundSettings
from clients.state import DiskState

ORDERS = RoundSettings(epochs=2, learning_rate=0.05, batch_size=4)


def node(folder, **more):
    task = ToyTask()
    return FederatedClient(task, task.data(1), DiskState(folder), ORDERS, seed=SEED, device=torch.device("cpu"), **more)


@pytest.mark.parametrize(
    ("shared", "names"),  # in the order of the state dict
    [
        (("*",), ["passes", "encoder.weight", "head.weight", "head.bias"]),
        (("encoder.*",), ["encoder.weight"]),
        (("head.*", "encoder.*"), ["encoder.weight", "head.weight", "head.bias"]),
    ],
)
def test_the_older_face_gives_the_numbers_of_the_core(tmp_path, shared, names):
    core, face = node(tmp_path / "core"), node(tmp_path / "face", shared=shared)
    start = face.get_parameters({})
    assert same_bits(dict(zip(names, start, strict=True)), initial(names))
    for server_round in (1, 2):
        config = {"server-round": server_round, "learning-rate": 0.2}
        settings = replace(ORDERS, server_round=server_round, learning_rate=0.2)
        reply = core.train_round(initial(names), settings)
        arrays, examples, metrics = face.fit(start, config)
        assert same_bits(dict(zip(names, arrays, strict=True)), reply.arrays)
        assert (examples, metrics) == (reply.num_examples, reply.metrics)
        reply = core.evaluate_round(reply.arrays, settings)
        loss, examples, metrics = face.evaluate(arrays, config)
        assert loss == metrics["test.loss"] == reply.metrics["test.loss"]
        assert examples == reply.num_examples == 3
        assert metrics == {name: value for name, value in reply.metrics.items() if name != "test.errors"}


def test_rounds_that_nobody_names_are_counted_in_the_context(tmp_path):
    """By fits: an evaluation is of the round before it, and a round that is named counts for nothing."""
    names, context = ["encoder.weight"], RecordDict()
    core = node(tmp_path / "core")
    for server_round in (1, 2):
        face = node(tmp_path / "face", shared=names, memory=context)  # a new one for each message
        orders = replace(ORDERS, server_round=server_round)
        expected = core.train_round(initial(names), orders).arrays
        assert same_bits(dict(zip(names, face.fit(list(initial(names).values()), {})[0], strict=True)), expected)
        loss = core.evaluate_round(initial(names), orders).metrics["test.loss"]
        assert face.evaluate(list(initial(names).values()), {})[0] == loss
        face.evaluate(list(initial(names).values()), {"server-round": 9})
    assert context["fedapps.fits"]["fits"] == 2


@pytest.mark.parametrize("count", [0, 1, 4])
def test_another_number_of_arrays_is_an_error_that_names_the_parameters(tmp_path, count):
    client = node(tmp_path, shared=["head.*"])
    with pytest.raises(ValueError, match=rf"received {count} arrays, but 2 parameters.*head\.weight, head\.bias"):
        client.fit([np.zeros(1, np.float32)] * count, {})


def test_a_config_value_of_the_wrong_type_names_its_key(tmp_path):
    client = node(tmp_path)
    with pytest.raises(ValueError, match="config epochs = '3': must be of type int"):
        client.fit(client.get_parameters({}), {"epochs": "3"})
