"""Flower's NumPyClient methods of a node: the numbers of the core, in lists."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.numpy_client import NumPyClientAdapter
from fedapps.clients.rules import LimitError, NodeLimits, RulesError
from fedapps.tasks.base import Evaluation
from fedapps.tasks.profiles import ModelRoles
from flwr.app import RecordDict
from torch.nn.functional import mse_loss
from toy_nodes import SETTINGS, at, initial, node
from toys import ToyModel, ToyTask, same_bits

from fedapps.methods.fedvc import FedVcPart
from fedapps.methods.spfl import Personalisation


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


def test_the_local_parts_read_each_message(tmp_path):
    """What one message sets does not count for the next."""
    client = NumPyClientAdapter(node(tmp_path / "client", FedVcPart()), SETTINGS)
    examples = [client.fit(client.get_parameters({}), {"server-round": 1, **config})[1] for config in (
        {}, {"virtual-examples": 2}, {},
    )]  # fmt: skip
    assert examples == [6, 2, 6]


def test_fits_and_evaluations_work_within_the_limits_of_the_node(tmp_path):
    """Each message has its own."""
    client = NumPyClientAdapter(node(tmp_path), SETTINGS, working=NodeLimits(steps=3).applied)
    start, one_step = client.get_parameters({}), {"epochs": 1, "batch-size": 2}
    for _ in "12":
        client.fit(start, one_step)
    with pytest.raises(LimitError, match="this node takes at most 3 optimizer steps"):
        client.fit(start, {"epochs": 4})

    def resting():
        raise RulesError("not now")

    client = NumPyClientAdapter(node(tmp_path), SETTINGS, working=resting)
    for work in (client.fit, client.evaluate):
        with pytest.raises(RulesError, match="not now"):
            work(start, {})


def test_an_evaluation_is_prepared_by_the_local_parts(tmp_path):
    part = Personalisation(3, 0.1)
    client = NumPyClientAdapter(node(tmp_path / "client", part), SETTINGS)
    core = node(tmp_path / "core", part).evaluate_round(initial(), SETTINGS).metrics
    loss, _, metrics = client.evaluate(client.get_parameters({}), {})
    assert loss == metrics["test.loss"] == core["test.loss"]


def test_a_value_of_the_wrong_type_for_a_local_part_names_its_key(tmp_path):
    client = NumPyClientAdapter(node(tmp_path, FedVcPart()), SETTINGS)
    with pytest.raises(ValueError, match="config virtual-examples = 'many': must be of type int"):
        client.fit(client.get_parameters({}), {"virtual-examples": "many"})


class Accurate(ToyTask):
    """Reports an accuracy before anything else, and no loss."""

    def evaluate(self, model, data, *, seed, final):
        return Evaluation({"test.accuracy": 0.75})


class Mined(Accurate):
    """Its examples come from the model in training alone; each of them has the loss 3."""

    @property
    def roles(self):
        return ModelRoles(examples=False)

    def examples(self, data, split, batch_size):
        raise NotImplementedError

    def loss(self, model, batch):
        return 3 * torch.ones_like(batch["y"]).mean()


def test_the_loss_is_that_of_the_task_whatever_it_reports_first(tmp_path):
    client = NumPyClientAdapter(node(tmp_path, task=Accurate()), SETTINGS)
    loss, examples, metrics = client.evaluate(client.get_parameters({}), {})
    model, test = ToyModel(), ToyTask().data(1).splits["test"]
    model.load_state_dict({name: torch.from_numpy(array) for name, array in initial().items()})
    assert loss == pytest.approx(mse_loss(model.eval()(test["x"]), test["y"]).item())
    assert (examples, metrics) == (3, {"test.accuracy": 0.75})


def test_where_a_task_mines_its_examples_the_loss_is_that_of_training(tmp_path):
    client = NumPyClientAdapter(node(tmp_path, task=Mined()), SETTINGS)
    assert client.evaluate(client.get_parameters({}), {})[0] == 3.0


def test_without_test_examples_the_loss_is_that_of_others_and_without_any_an_error(tmp_path):
    data = ToyTask().data(1)
    only_train = replace(data, splits={"train": data.splits["train"]})
    client = NumPyClientAdapter(node(tmp_path / "train", task=Accurate(), data=only_train), SETTINGS)
    as_test = replace(data, splits={"train": data.splits["train"], "test": data.splits["train"]})
    other = NumPyClientAdapter(node(tmp_path / "test", task=Accurate(), data=as_test), SETTINGS)
    losses = [each.evaluate(each.get_parameters({}), {})[0] for each in (client, other)]
    assert losses[0] == losses[1]
    none = NumPyClientAdapter(node(tmp_path / "none", task=Accurate(), data=replace(data, splits={})), SETTINGS)
    with pytest.raises(ValueError, match="node toy-1 has no examples to measure a loss on"):
        none.evaluate(none.get_parameters({}), {})
