"""A node whose data comes in stages: what it takes along, what it forgets, what it is evaluated on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from toy_nodes import NAMES, initial, nodes_app, staged
from toys import ToyTask, arrays_of, federate, same_bits

from clients.base import FederatedClient
from clients.fisher_client import FisherClient, FisherOrder
from clients.round_settings import RoundSettings
from clients.state import ContextState, DiskState
from strategies.base import BaseStrategy
from strategies.fisher_exchange import FisherExchange
from tasks.base import DataError

ORDERS = RoundSettings(epochs=2, learning_rate=0.05, batch_size=4)


def node(folder, partition=1, kind=FederatedClient, **more):
    return kind(ToyTask(), staged(partition), DiskState(folder), ORDERS, seed=3, device=torch.device("cpu"), **more)


def at(server_round, stage, **changes):
    return replace(ORDERS, server_round=server_round, stage=stage, **changes)


def test_a_stage_is_trained_on_its_own_data(tmp_path):
    task = ToyTask()
    plain = FederatedClient(
        task, replace(task.data(4), key="toy-1"), DiskState(tmp_path / "plain"), ORDERS, seed=3,
        device=torch.device("cpu"),
    )  # fmt: skip
    expected = plain.train_round(initial(), at(1, 0))
    assert same_bits(node(tmp_path / "staged").train_round(initial(), at(1, 1)).arrays, expected.arrays)


def test_a_stage_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(DataError, match="toy-1 has 3 stages of data: there is no stage 4"):
        node(tmp_path).train_round(initial(), at(1, 3))


def test_every_evaluation_tells_of_all_stages(tmp_path):
    client = node(tmp_path)
    trained = client.train_round(initial(), at(1, 1)).arrays
    metrics = client.evaluate_round(trained, at(1, 1)).metrics
    model = ToyTask().build_model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trained.items()})
    model.eval()
    for stage, splits in enumerate(staged(1).stages):
        expected = ToyTask().loss(model, splits["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_a_fresh_stage_forgets_what_is_private(tmp_path):
    """Single-task learning: each stage is as if it were the first."""
    going_on, fresh, new = (node(tmp_path / name) for name in ("going-on", "fresh", "new"))
    going_on.train_round({}, at(1, 0))
    fresh.train_round({}, at(1, 0, fresh_stages=True))
    for client, changes in ((going_on, {}), (fresh, {"fresh_stages": True}), (new, {})):
        client.train_round({}, at(2, 1, **changes))
        client.train_round({}, at(3, 1, **changes))

    def weights(client):
        return {name: array for name, array in client.private.load(4).items() if name in NAMES}

    assert same_bits(weights(fresh), weights(new))
    assert not same_bits(weights(fresh), weights(going_on))


@pytest.mark.parametrize("memory", [{"ewc": 0.5}, {"l2_transfer": 0.5}])
def test_the_past_holds_from_the_second_stage_on(tmp_path, memory):
    plain, held = node(tmp_path / "plain"), node(tmp_path / "held")
    first = [client.train_round(initial(), at(1, 0, **m)).arrays for client, m in ((plain, {}), (held, memory))]
    assert same_bits(*first)
    free, tied = (
        client.train_round(first[0], at(2, 1, **m)).arrays for client, m in ((plain, {}), (held, memory))
    )  # fmt: skip
    assert not same_bits(free, tied)

    def moved(arrays):
        return sum(float(np.square(arrays[name] - first[0][name]).sum()) for name in NAMES[:3])

    assert moved(tied) < moved(free)


def test_an_overwhelming_pull_leaves_the_last_stages_solution(tmp_path):
    """L2 transfer with SGD at learning rate 1/λ: each step lands on the anchor, but for the loss's gradient / λ."""
    client = node(tmp_path)
    orders = {"l2_transfer": 1e4, "optimizer": "sgd", "learning_rate": 1e-4}
    first = client.train_round(initial(), at(1, 0, **orders)).arrays
    second = client.train_round(initial(), at(2, 1, **orders)).arrays
    for name in NAMES[:3]:
        np.testing.assert_allclose(second[name], first[name], atol=2e-3)


def test_the_learning_rate_falls_across_rounds_and_starts_again_with_a_stage(tmp_path):
    client, seen = node(tmp_path), []
    for server_round, stage in ((1, 0), (2, 0), (3, 0), (4, 1)):
        # No step can improve anything: every epoch is stale but the first of a stage.
        orders = at(server_round, stage, plateau_patience=2, learning_rate=1e-30, min_learning_rate=0.0, epochs=1)
        client.train_round(initial(), orders)
        seen.append(float(client.private.load(server_round + 1)["memory.plateau"][0]))
    assert seen == [1e-30, 1e-30, 0.5e-30, 1e-30]


def test_a_plateau_needs_validation_examples(tmp_path):
    task = ToyTask()
    client = FederatedClient(task, task.data(1), DiskState(tmp_path), ORDERS, seed=3, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="plateau-patience = 2: node toy-1 has no validation examples"):
        client.train_round(initial(), at(1, 0, plateau_patience=2))


@pytest.mark.parametrize(
    ("orders", "trained", "held"),
    [
        ({}, 7, 0),
        ({"fresh_stages": True}, 21, 0),
        ({"ewc": 0.1}, 7, 14),
        ({"ewc": 0.1, "proximal": 0.1}, 7, 21),
    ],
)
def test_parameters_are_counted(tmp_path, orders, trained, held):
    metrics = node(tmp_path).train_round(initial(), at(1, 0, **orders)).metrics
    assert (metrics["trainable_parameters"], metrics["static_parameters"]) == (trained, held)


# -- with strategies -------------------------------------------------------------------------------------------


def staged_app():
    """A ClientApp of nodes with stages, under the orders of messages."""

    def client_of(partition, message, context):
        settings, order = ORDERS.updated(message.content["config"]), FisherOrder.read(message.content)
        state, device = ContextState(context.state), torch.device("cpu")
        return FisherClient(
            ToyTask(), staged(partition), state, settings, seed=3, device=device, order=order
        ), settings  # fmt: skip

    return nodes_app(client_of)


def run(strategy, **orders):
    result = federate(
        strategy, staged_app(), initial(), num_nodes=3, num_rounds=6,
        train_config=lambda server_round: ConfigRecord({"stage": (server_round - 1) // 2, **orders}),
    )  # fmt: skip
    assert not strategy.report.refused
    return arrays_of(result.arrays)


@pytest.mark.usefixtures("flower_identity")
@pytest.mark.parametrize("anchors", ["separate", "online"])
def test_ewc_on_the_node_is_the_exchange_of_the_own_past_alone(anchors):
    on_the_node = run(BaseStrategy(), **{"ewc": 0.5, "ewc-anchors": anchors})
    exchanged = run(FisherExchange(own_past=0.5, anchors=anchors))
    without = run(BaseStrategy())
    for name in NAMES[:3]:
        np.testing.assert_allclose(on_the_node[name], exchanged[name], rtol=1e-4, atol=1e-5)
        assert np.abs(on_the_node[name] - without[name]).max() > 1e-3
