"""Hooks for algorithms that train in ways of their own, with published methods in a few lines, worked out by hand."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import get_arrays, load_arrays, memory_of
from fedapps.clients.local_part import LocalPart
from fedapps.clients.personal_model import PersonalModel, TwoModels, copy_of
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import ContextState
from fedapps.clients.training import mean_loss
from fedapps.strategies import BaseStrategy
from quadratics import Federation, QuadraticTask
from toy_nodes import node
from toys import ToyTask

TWO = QuadraticTask([1.0, 3.0], [[2.0], [-1.0]])


def federate(part, rounds=2):
    """θ after each round, and what each node keeps."""
    federation = Federation(TWO, [part], steps=2, learning_rate=0.1)
    federation.run(BaseStrategy(weighting="uniform"), rounds)
    kept = {index: ContextState(state).load(10**6) for index, state in federation.states.items()}
    return [float(theta[0]) for theta in federation.theta], [memory_of(kept[index] or {}) for index in (0, 1)]


def near(*numbers):
    return pytest.approx(list(numbers), abs=2e-6)


# -- a personal model ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ditto(PersonalModel):
    """Li et al. 2021, Algorithm 1, λ = 1."""

    def loss(self, loss, model, node_round):
        received = {name: p.detach().clone() for name, p in model.shared.named_parameters()}

        def both(two, batch):
            far = sum(((p - received[name]) ** 2).sum() for name, p in two.personal.named_parameters())
            return loss(two.shared, batch) + loss(two.personal, batch) + far / 2

        return both


def test_a_second_model_is_trained_beside_the_shared_one_and_stays():
    theta, memory = federate(Ditto())
    assert theta == near(-0.065, -0.10725)  # FedAvg
    assert [m["personal.theta"].item() for m in memory] == near(0.5787, -0.6632)


@dataclass(frozen=True)
class PFedMe(PersonalModel):
    """T. Dinh et al. 2020, Algorithm 1: λ = 2, two steps on the personal model for each of the shared one."""

    def before_training(self, model, node_round):
        model.personal.load_state_dict(model.shared.state_dict())
        return {}

    def plan(self, plan, model, data, node_round):
        loss = node_round.task.loss

        def step(two, batch, update):
            personal = torch.optim.SGD(two.personal.parameters(), lr=0.1)
            for _ in range(2):
                pairs = zip(two.personal.parameters(), two.shared.parameters(), strict=True)
                moved = loss(two.personal, batch) + sum(((p - x.detach()) ** 2).sum() for p, x in pairs)
                personal.zero_grad()
                moved.backward()
                personal.step()
            with torch.no_grad():
                for p, x in zip(two.personal.parameters(), two.shared.parameters(), strict=True):
                    x -= update.rate * 2 * (x - p)
            return moved

        return [replace(phase, step=step) for phase in super().plan(plan, model, data, node_round)]


def test_a_part_takes_the_steps_of_a_phase():
    assert federate(PFedMe())[0] == near(-0.014778, -0.027560)


def test_the_personal_model_is_evaluated_and_the_shared_one_is_sent(tmp_path):
    client, received = node(tmp_path, Ditto()), get_arrays(ToyTask().build_model(), ["encoder.weight", "passes"])
    settings = RoundSettings()
    before = client.prepared_model(received, settings)
    assert isinstance(before.model, TwoModels)
    assert before.at(0) is before.model.personal
    np.testing.assert_equal(get_arrays(before.at(0), received), received)  # where it never trained
    reply = client.train_round(received, settings)
    assert set(reply.arrays) == set(received)
    kept = client.private.load(2)
    assert {"head.weight", "head.bias", "memory.personal.encoder.weight", "memory.personal.passes"} <= set(kept)
    after = client.prepared_model(received, replace(settings, server_round=2))
    np.testing.assert_equal(get_arrays(after.at(0), ["head.bias"])["head.bias"], kept["memory.personal.head.bias"])


def test_a_copy_shares_the_data_of_a_task_and_no_parameter():
    model = ToyTask().build_model()
    model.houses = object()
    copied = copy_of(model)
    assert copied.houses is model.houses
    assert not {id(p) for p in model.parameters()} & {id(p) for p in copied.parameters()}


# -- the round -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nearest(LocalPart):
    """IFCA (Ghosh et al. 2020): of several models, train the one with the smallest loss."""

    models: tuple = field(default=({"theta": np.ones(1, np.float32)}, {"theta": -np.ones(1, np.float32) / 2}))

    def begin(self, node_round):
        task, data = node_round.task, node_round.data
        received = [{**node_round.received, **model} for model in self.models]
        losses = [mean_loss(task, node_round.model_of(r), data, "train", node_round.device) for r in received]
        best = int(np.argmin(losses))
        return replace(node_round, received=received[best], measured={"nearest": best})

    def metrics(self, model, node_round):
        return {"nearest.start": float(node_round.received["theta"][0])}

    def remember(self, model, node_round):
        return {"chosen": np.array([node_round.measured["nearest"]])}


def test_a_part_chooses_what_it_starts_from():
    _, memory = federate(Nearest(), rounds=1)
    assert [m["chosen"].item() for m in memory] == [0, 1]


@dataclass(frozen=True)
class Measured(LocalPart):
    """q-FFL's loss before training (Li et al. 2020); the model starts at twice what came."""

    def before_training(self, model, node_round):
        value = mean_loss(node_round.task, model, node_round.data, "train", node_round.device)
        load_arrays(model, {"theta": node_round.received["theta"] * 2})
        return {"measured": value}

    def metrics(self, model, node_round):
        return {"measured.loss": node_round.measured["measured"]}


@dataclass(frozen=True)
class Plain(LocalPart):
    """No hook."""


@pytest.mark.parametrize(("part", "metrics"), [(Measured(), {"measured.loss": 0.5}), (Nearest(), {"nearest.start": 1}),
                                               (Plain(), {})])  # fmt: skip
def test_what_parts_measure_is_in_the_metrics_of_the_reply(part, metrics, tmp_path):
    client = node(tmp_path, part, task=TWO, data=TWO.node(0))
    reply = client.train_round({"theta": np.ones(1, np.float32), "scale": np.ones(2, np.float32)}, RoundSettings())
    assert reply.metrics.items() >= metrics.items()
    assert set(reply.metrics) == {"steps", "loss", *metrics}


def test_a_model_changes_before_its_first_step():
    federation = Federation(TWO, [Measured()], steps=1, learning_rate=0.1)
    federation.run(BaseStrategy(weighting="uniform"), 2)
    # 0 -> (.2, -.3), mean -.05; doubled -.1 -> (.11, -.37), mean -.13.
    assert [float(theta[0]) for theta in federation.theta] == near(-0.05, -0.13)
