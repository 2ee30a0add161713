"""A node that took no part in training: what it trains of the model that it receives, and what it never touches."""

import numpy as np
import pytest
import torch
from decomposed_nodes import WEIGHTS, decomposition
from fedapps.clients.arrays import get_arrays
from fedapps.clients.new_node import NewNode
from fedapps.clients.settings import LocalTraining, RoundSettings
from fedapps.clients.state import DiskState
from fedapps.tasks.base import NodeData
from fedapps.tasks.lqr.task import LqrTask
from toy_nodes import NAMES, SEED, adaptive_updating, at, initial, node, staged
from toys import ToyTask, same_bits

from fedapps.methods.spfl import Personalisation

ENCODER, HEAD = NAMES[:1], NAMES[1:3]


def new_node(*parts, folder="nowhere", task=None, data=None, **more):
    """A new node, by default on the data of partition 1."""
    task, data = task or ToyTask(), data or ToyTask().data(1)
    return NewNode(task, data, DiskState(folder), parts=parts, seed=SEED, device=torch.device("cpu"), **more)


def adapted(client, received, settings, **more):
    model = client.adapt(received, settings, **more).model
    return get_arrays(model, model.state_dict())


def moved(arrays):
    """The parameters that are not those of the initial model."""
    return [name for name in NAMES[:3] if not same_bits({name: arrays[name]}, initial([name]))]


def test_a_step_of_a_gain_by_hand():
    """The dynamics are shared. u = -K s of s = (1, 2) is 1.5 too small, so that SGD adds 2 · 0.1 · 1.5 s to -K."""
    row = {"inputs": torch.tensor([[1.0, 2.0, 0.0]]), "targets": torch.tensor([[9.0, 9.0, 0.5]])}
    task, data = LqrTask(), NodeData("robot", {"train": row, "test": row}, {}, {"control-weights": {"test": [1.0]}})
    shared = {"dynamics.A": np.eye(2, dtype=np.float32), "dynamics.B": np.ones((2, 1), np.float32)}
    client = new_node(task=task, data=data)
    with torch.no_grad():
        gain = client._initial_model().policy.K.numpy()[0].astype(np.float64)
    sgd = RoundSettings(training=LocalTraining(epochs=1, learning_rate=0.1, batch_size=1, optimizer="sgd"))
    arrays = adapted(client, shared, sgd)
    error = -gain @ [1.0, 2.0] - 0.5
    np.testing.assert_allclose(arrays["policy.K"][0], gain + 0.1 * 2 * error * np.array([1.0, 2.0]), rtol=1e-5)
    assert same_bits({name: arrays[name] for name in shared}, shared)


def test_what_is_private_is_trained_and_what_is_shared_is_frozen():
    assert moved(adapted(new_node(), initial(ENCODER), at(4))) == HEAD
    assert moved(adapted(new_node(), initial(HEAD), at(4))) == ENCODER


@pytest.mark.parametrize("shared", [NAMES, []], ids=["all", "nothing"])
def test_where_all_or_nothing_is_shared_it_is_a_round_of_training(tmp_path, shared):
    received = {name: array + array.dtype.type(1) for name, array in initial(shared).items()}
    client = node(tmp_path / "plain")
    result = client.train_round(received, at(4))
    trained = result.arrays or client.private.load(5)
    assert same_bits(adapted(new_node(), received, at(4)), {name: trained[name] for name in NAMES})


def test_zero_epochs_give_the_received_model_with_the_initial_private_part(tmp_path):
    received = {name: array + 1 for name, array in initial(ENCODER).items()}
    expected = node(tmp_path / "plain").evaluate_round(received, at(4))
    result = new_node().adapt_round(received, at(4, epochs=0))
    assert (result.metrics, result.num_examples) == (expected.metrics, expected.num_examples)
    assert same_bits(adapted(new_node(), received, at(4, epochs=0)), {**initial(), **received})


def test_it_reads_and_writes_no_state(tmp_path):
    state = DiskState(tmp_path / "node")
    node(state).train_round(initial(ENCODER), at(1))
    (kept,) = state.folder.iterdir()
    before = kept.read_bytes()
    client = new_node(folder=state.folder)
    assert same_bits(adapted(client, initial(ENCODER), at(2)), adapted(new_node(), initial(ENCODER), at(2)))
    assert [path.read_bytes() for path in state.folder.iterdir()] == [before]


def test_what_it_trains_is_a_personal_model_like_that_of_a_round():
    kept = []
    client = new_node(keep=lambda *given: kept.append(given))
    client.adapt_round(initial(ENCODER), at(4, epochs=0))
    result = client.adapt_round(initial(ENCODER), at(4))
    ((phase, model, _, same),) = kept
    assert (phase, same) == ("adapt", result)
    assert set(model.state_dict()) == set(NAMES)


def test_the_steps_are_those_of_the_epochs():
    assert new_node().adapt_round(initial(ENCODER), at(4, epochs=3)).metrics["steps.count"] == 6
    assert new_node().adapt_round(initial(ENCODER), at(4, epochs=3, steps=99)).metrics["steps.count"] == 6


def test_a_given_learning_rate_replaces_that_of_the_settings_and_the_parts():
    plain = adapted(new_node(), initial(ENCODER), at(4, learning_rate=0.2))
    for parts in ((), (adaptive_updating(1, 0.5),)):
        assert same_bits(adapted(new_node(*parts), initial(ENCODER), at(4), learning_rate=0.2), plain)


def test_adaptive_updating_trains_at_its_rate():
    half = adapted(new_node(adaptive_updating(1, 0.5)), initial(ENCODER), at(4))
    assert same_bits(half, adapted(new_node(), initial(ENCODER), at(4, learning_rate=0.025)))


def test_personalisation_trains_at_its_rates():
    on = Personalisation(9, 0.1)
    assert same_bits(adapted(new_node(on), initial(), at(4)), adapted(new_node(), initial(), at(4, learning_rate=0.1)))
    still = Personalisation(1, 0.001, rates={name: np.zeros(()) for name in HEAD})
    assert moved(adapted(new_node(still), initial(), at(4))) == ENCODER


@pytest.mark.parametrize("kind", ["apd", "fedweit"])
def test_a_decomposed_model_adapts_its_mask_and_its_adaptive_parameters(kind):
    client = new_node(decomposition(kind), data=staged(1))
    settings = at(4, stage=2)
    node_round = client._round(initial(WEIGHTS), settings, before=4)
    model = client._model(node_round)
    (phase,) = client._plan(model, node_round, 0.0)
    assert set(phase.trainable) == {"adaptive", "mask", "own", "alpha", "past_adaptive", "past_mask"}
    before, after = (client.adapt_round(initial(WEIGHTS), at(4, stage=2, epochs=epochs)) for epochs in (0, 20))
    assert after.metrics["test.loss"] < before.metrics["test.loss"]


def test_a_node_without_training_examples_cannot_adapt():
    splits = ToyTask().data(1).splits
    empty = NodeData("toy-1", {**splits, "train": {name: tensor[:0] for name, tensor in splits["train"].items()}})
    with pytest.raises(ValueError, match="node toy-1 has no training examples, and cannot adapt a model to them"):
        new_node(data=empty).adapt(initial(), at(4))
    assert new_node(data=empty).adapt(initial(), at(4, epochs=0)).steps == 0
