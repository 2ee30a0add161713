"""Flower's NumPyClient methods of a node: the numbers of the core, in lists."""

import itertools

import numpy as np
import pytest
from fedapps.clients.numpy_client import NumPyClientAdapter
from fedapps.clients.parts.adaptive_updating import AdaptiveUpdating
from fedapps.clients.parts.personalisation import Personalisation
from fedapps.clients.parts.proximal import Proximal
from flwr.app import RecordDict
from toy_nodes import SETTINGS, at, initial, node
from toys import same_bits


@pytest.mark.parametrize(
    ("shared", "names"),  # in the order of the state dict
    [
        (("*",), ["passes", "encoder.weight", "head.weight", "head.bias"]),
        (("encoder.*",), ["encoder.weight"]),
        (("head.*", "encoder.*"), ["encoder.weight", "head.weight", "head.bias"]),
    ],
)
def test_they_give_the_numbers_of_the_core(tmp_path, shared, names):
    core, client = node(tmp_path / "core"), NumPyClientAdapter(node(tmp_path / "client"), SETTINGS, shared)
    start = client.get_parameters({})
    assert same_bits(dict(zip(names, start, strict=True)), initial(names))
    for server_round in (1, 2):
        config = {"server-round": server_round, "learning-rate": 0.2}
        settings = at(server_round, learning_rate=0.2)
        reply = core.train_round(initial(names), settings)
        arrays, examples, metrics = client.fit(start, config)
        assert same_bits(dict(zip(names, arrays, strict=True)), reply.arrays)
        assert (examples, metrics) == (reply.num_examples, reply.metrics)
        reply = core.evaluate_round(reply.arrays, settings)
        loss, examples, metrics = client.evaluate(arrays, config)
        assert loss == metrics["test.loss"] == reply.metrics["test.loss"]
        assert examples == reply.num_examples == 3
        assert metrics == {name: value for name, value in reply.metrics.items() if name != "test.errors"}


def test_rounds_without_a_number_are_counted_in_the_context(tmp_path):
    """By fits: an evaluation is of the round before it, and a round with a number is not counted."""
    names, context = ["encoder.weight"], RecordDict()
    core = node(tmp_path / "core")
    for server_round in (1, 2):
        client = NumPyClientAdapter(node(tmp_path / "client"), SETTINGS, names, context)  # a new one for each message
        settings = at(server_round)
        expected = core.train_round(initial(names), settings).arrays
        assert same_bits(dict(zip(names, client.fit(list(initial(names).values()), {})[0], strict=True)), expected)
        loss = core.evaluate_round(initial(names), settings).metrics["test.loss"]
        assert client.evaluate(list(initial(names).values()), {})[0] == loss
        client.evaluate(list(initial(names).values()), {"server-round": 9})
    assert context["fedapps.fits"]["fits"] == 2


@pytest.mark.parametrize("count", [0, 1, 4])
def test_another_number_of_arrays_is_an_error_that_names_the_parameters(tmp_path, count):
    client = NumPyClientAdapter(node(tmp_path), SETTINGS, ["head.*"])
    with pytest.raises(ValueError, match=rf"received {count} arrays, but 2 parameters.*head\.weight, head\.bias"):
        client.fit([np.zeros(1, np.float32)] * count, {})


def test_a_config_value_of_the_wrong_type_names_its_key(tmp_path):
    client = NumPyClientAdapter(node(tmp_path), SETTINGS)
    with pytest.raises(ValueError, match="config epochs = '3': must be of type int"):
        client.fit(client.get_parameters({}), {"epochs": "3"})


def test_the_local_parts_read_the_config_of_each_message(tmp_path):
    """What one message sets does not count for the next."""
    names, numbers = ["encoder.weight"], itertools.count()
    client = NumPyClientAdapter(node(tmp_path / "client", AdaptiveUpdating(1), Proximal()), SETTINGS, names)

    def expected(*parts):
        reply = node(tmp_path / str(next(numbers)), *parts).train_round(initial(names), SETTINGS)
        return reply.arrays["encoder.weight"], reply.metrics["steps"]

    def found(**config):
        arrays, _, metrics = client.fit(list(initial(names).values()), {"server-round": 1, **config})
        return arrays[0], metrics["steps"]

    for config, parts in [
        ({"proximal": 5.0, "adapt-epochs": 3}, [AdaptiveUpdating(3), Proximal(5.0)]),
        ({}, [AdaptiveUpdating(1)]),
        ({"adapt-epochs": 0}, []),
    ]:
        (array, steps), (expected_array, expected_steps) = found(**config), expected(*parts)
        assert array.tobytes() == expected_array.tobytes()
        assert steps == expected_steps


def test_an_evaluation_reads_its_config_too(tmp_path):
    client = NumPyClientAdapter(node(tmp_path / "client", Personalisation()), SETTINGS)
    plain, personal = (
        client.evaluate(client.get_parameters({}), config)[0]
        for config in ({}, {"personalise": True, "personal-epochs": 3, "personal-learning-rate": 0.1})
    )  # fmt: skip
    part = Personalisation(True, 3, 0.1)
    core = node(tmp_path / "core", part).evaluate_round(initial(), SETTINGS).metrics["test.loss"]
    assert personal == core < plain


def test_a_value_of_the_wrong_type_for_a_local_part_names_its_key(tmp_path):
    client = NumPyClientAdapter(node(tmp_path, Proximal()), SETTINGS)
    with pytest.raises(ValueError, match="config proximal = 'much': must be of type float"):
        client.fit(client.get_parameters({}), {"proximal": "much"})
