"""Logit adjustment by the label shares of a node."""

import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.local_part import NodeRound
from fedapps.clients.logit_adjustment import LogitAdjustment, smoothed_shares
from fedapps.clients.settings import LocalTraining
from fedapps.clients.state import ContextState
from fedapps.clients.training import Plateau
from fedapps.tasks.base import Evaluation, NodeData
from fedapps.tasks.partitioners import own_label_shares
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from toy_nodes import SETTINGS, at, node
from toys import ToyTask, same_bits

from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method


class LabelTask(ToyTask):
    """Two numbers with one of three labels."""

    name: ClassVar[str] = "labels"
    num_classes = 3

    def build_model(self):
        return nn.Linear(2, 3)

    def data(self, labels):
        count = len(labels)
        x = torch.from_numpy(np.random.default_rng(count).normal(size=(count, 2)).astype(np.float32))
        split = {"x": x, "label": torch.tensor(labels, dtype=torch.int64)}
        return NodeData("labels", {"train": split, "test": split})

    def loss(self, model, batch):
        return cross_entropy(model(batch["x"]), batch["label"])

    def evaluate(self, model, data, *, seed, final):
        with torch.no_grad():
            return Evaluation({"test.loss": float(self.loss(model, data.splits["test"]))})


TASK = LabelTask()
RECEIVED = {"weight": np.ones((3, 2), np.float32), "bias": np.zeros(3, np.float32)}


def wrapped(model, labels, tau):
    node_round = NodeRound(
        TASK, TASK.data(labels), SETTINGS, {}, {}, seed=3, device=torch.device("cpu"), initial_model=TASK.build_model
    )  # fmt: skip
    return LogitAdjustment(tau).wrap(model, node_round)


def of(labels, *parts, state=None):
    return node(state or ContextState({}), *parts, task=TASK, data=TASK.data(labels))


def test_the_shares_by_hand():
    """Counts 3, 1, 0, 0: with one more of each, 4, 2, 1, 1 of 8."""
    assert smoothed_shares(torch.tensor([0, 1, 0, 0]), 4).tolist() == [4 / 8, 2 / 8, 1 / 8, 1 / 8]


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_the_loss_by_hand(tau):
    """Labels 0, 0, 1 of three have the shares 3/6, 2/6, 1/6. Where all logits are 0, the probability of the label 1 is
    (2/6)^τ / ((3/6)^τ + (2/6)^τ + (1/6)^τ); for τ = 1 it is its share.
    """
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    batch = {"x": torch.ones(1, 2), "label": torch.tensor([1])}
    loss = TASK.loss(wrapped(model, [0, 0, 1], tau), batch)
    expected = -math.log(2**tau / (3**tau + 2**tau + 1))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert TASK.loss(model.eval(), batch).item() == pytest.approx(math.log(3))


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, 2), min_size=1, max_size=9), tau=st.floats(0.01, 3), seed=st.integers(0, 9))
def test_training_probabilities_are_those_of_tests_times_the_shares(labels, tau, seed):
    """softmax(f + τ log π) ∝ π^τ softmax(f), in training and on examples with the node's label shares only."""
    torch.manual_seed(seed)
    model, x = wrapped(nn.Linear(2, 3), labels, tau), torch.randn(4, 2)
    plain = model.eval()(x).softmax(dim=1).detach().double()
    weighted = plain * smoothed_shares(torch.tensor(labels), 3) ** tau
    expected = weighted / weighted.sum(dim=1, keepdim=True)
    np.testing.assert_allclose(model.train()(x).softmax(dim=1).detach(), expected, rtol=1e-4)
    trained = model(x)
    with own_label_shares(model.eval()):
        assert torch.equal(model(x), trained)
    np.testing.assert_allclose(model(x).softmax(dim=1).detach(), plain, rtol=1e-6)


def test_a_weight_of_zero_is_plain_training_bit_for_bit():
    labels = [0, 0, 0, 1, 2, 0]
    plain, zero = (of(labels, *parts).train_round(RECEIVED, at(1)) for parts in ((), (LogitAdjustment(0.0),)))
    assert same_bits(zero.arrays, plain.arrays)
    assert zero.metrics == plain.metrics
    adjusted = of(labels, LogitAdjustment(1.0)).train_round(RECEIVED, at(1))
    assert not same_bits(adjusted.arrays, plain.arrays)


def test_equal_shares_change_the_loss_of_no_batch():
    labels = [0, 1, 2, 0, 1, 2]
    plain, equal = (of(labels, *parts).train_round(RECEIVED, at(1)) for parts in ((), (LogitAdjustment(2.0),)))
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(equal.arrays[name], array, rtol=1e-4, atol=1e-6)


def test_an_evaluation_for_balanced_labels_does_not_adjust():
    plain, adjusted = (of([0, 0, 1], *parts).evaluate_round(RECEIVED, at(1)) for parts in ((), (LogitAdjustment(1.0),)))
    assert adjusted.metrics == plain.metrics


def test_a_node_without_training_examples_is_evaluated():
    data = TASK.data([0, 1])
    client = node(
        ContextState({}), LogitAdjustment(1.0), task=TASK, data=replace(data, splits={"test": data.splits["test"]})
    )  # fmt: skip
    assert "test.loss" in client.evaluate_round(RECEIVED, at(1)).metrics


@pytest.mark.parametrize("key", ["fedavg.logit-adjustment", "fedvocab.logit-adjustment"])
def test_the_weight_comes_from_the_options_and_is_not_negative(key):
    name = key.partition(".")[0]
    (*_, part) = build_method(read_expression(f"{name}(logit-adjustment=0.5)"), {}).local_parts()
    assert part == LogitAdjustment(0.5)
    with pytest.raises(ValueError, match=rf"{key} = -1\.0: must be a number at least 0"):
        build_method(read_expression(f"{name}(logit-adjustment=-1)"), {})


def test_the_plateau_follows_the_loss_that_the_node_trains_on(monkeypatch):
    seen = []
    monkeypatch.setattr(Plateau, "epoch_ended", lambda self, loss: seen.append(loss))
    labels = [0] * 9 + [1]
    data = TASK.data(labels)
    data = replace(data, splits={**data.splits, "validation": data.splits["train"]})
    client = node(ContextState({}), LogitAdjustment(1.0), task=TASK, data=data)
    still = LocalTraining(epochs=1, learning_rate=1e-12, batch_size=16, plateau_patience=1)
    client.train_round(
        {name: np.zeros_like(array) for name, array in RECEIVED.items()}, replace(SETTINGS, training=still)
    )
    shares = smoothed_shares(torch.tensor(labels), 3)
    assert seen == [pytest.approx(-float(0.9 * shares[0].log() + 0.1 * shares[1].log()), rel=1e-5)]
