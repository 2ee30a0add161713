"""Per-FedAvg: by hand in both variants, beside FedAvg, and its gradient beside that of the loss after a step."""

from dataclasses import replace

import pytest
import torch
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import ModelWithLoss, Phase, run_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, SecondWorld, run_method
from torch import nn
from toys import same_rounds

from fedapps.methods.per_fedavg import PerFedAvgOptions, PerFedAvgPart, parts_of

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731
FIRST, FREE = "per-fedavg(inner-rate=0.1)", "per-fedavg(inner-rate=0.1,gradient=hessian-free)"


@pytest.mark.parametrize(
    ("method", "shared", "adapted", "second"),
    [
        (FIRST, (-0.016050, -0.027704), (0.175066, -0.319393), (-0.102, -0.176062)),
        (FREE, (0.019244, 0.034371), (0.230933, -0.275941), (-0.058476, -0.104443)),
    ],
)
def test_two_worlds(method, shared, adapted, second, tmp_path):
    run = run_method(method, folder=tmp_path)
    assert run.values() == near(*shared)
    rows = [row for row in run.folder.lines("nodes.jsonl") if (row["phase"], row["round"]) == ("evaluate", 2)]
    losses = {
        "test.loss": [0.5 * a * (v - b) ** 2 for v, (a, b) in zip(adapted, Quadratics.nodes, strict=True)],
        "stale.test.loss": [0.5 * a * (shared[1] - b) ** 2 for a, b in Quadratics.nodes],
    }
    for name, values in losses.items():
        assert [row["metrics"][name] for row in rows] == pytest.approx(values, abs=1e-5)
    assert [row["metrics"]["steps.count"] for row in rows] == [1, 1]
    assert run_method(method, SecondWorld).values() == near(*second)


@pytest.mark.parametrize("keys", [{}, {"momentum": 0.9, "clip_norm": 0.5}, {"optimizer": "adam", "batch_size": 3}])
def test_without_an_inner_rate_it_is_fedavg(keys, tmp_path):
    runs = [
        run_method(method, Points, folder=tmp_path / method[:6], **keys)
        for method in ("per-fedavg(inner-rate=0)", "fedavg")
    ]
    assert same_rounds(*(run.arrays for run in runs))
    found = [[row["evaluate"]["test.loss"] for row in run.folder.lines("metrics.jsonl")] for run in runs]
    assert found[0] == found[1]


class Cubic(nn.Module):
    """Two parameters, one of which has no effect, and a statistic."""

    def __init__(self, value):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(value, dtype=torch.float64))
        self.idle = nn.Parameter(torch.ones(1, dtype=torch.float64))


def cubic(model, batch):
    return (batch["a"] * model.theta**3 + batch["b"] * model.theta).mean(0).sum()


def moved(model, rate, loss, batch):
    """Take a step of the Hessian-free variant at learning rate 1."""
    part = PerFedAvgPart(PerFedAvgOptions(rate, "hessian-free"))
    phase = Phase(
        LocalTraining(steps=1, learning_rate=1.0, optimizer="sgd"),
        step=lambda model, batch, update: part._step(ModelWithLoss(model, loss), batch, update),
    )
    run_plan(model, [phase], lambda size: iter([batch]), loss)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=2), st.floats(0.01, 0.5), st.integers(6, 9))
def test_the_hessian_free_gradient_is_that_of_the_loss_after_a_step(theta, rate, size):
    """With D″ = D it would be exactly the gradient of f(θ − α ∇f(θ; D); D′); here the examples are all alike."""
    batch = {name: torch.full((size, 2), value, dtype=torch.float64) for name, value in (("a", 0.7), ("b", -0.4))}
    model = Cubic(theta)
    before = model.theta.detach().clone().requires_grad_()
    inner = 3 * 0.7 * before**2 - 0.4
    after = before - rate * inner
    (expected,) = torch.autograd.grad((0.7 * after**3 - 0.4 * after).sum(), before)
    moved(model, rate, cubic, batch)
    assert (before - model.theta).detach().numpy() == pytest.approx(expected.numpy(), abs=1e-6)
    assert model.idle.item() == 1.0


def test_random_numbers_of_the_loss_do_not_count_as_curvature():
    model = Cubic([0.5, -0.5])
    moved(model, 0.1, lambda model, batch: (torch.rand(2) * model.theta).sum(), {"a": torch.zeros(6)})
    step = torch.tensor([0.5, -0.5]) - model.theta
    assert ((step >= 0) & (step < 1)).all()


def test_the_parts_of_a_batch_share_no_example_unless_it_is_small():
    def parts(size, number):
        return [part["x"].tolist() for part in parts_of({"x": torch.arange(size)}, number)]

    assert parts(5, 2) == [[0, 2, 4], [1, 3]]
    assert parts(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert parts(4, 3) == [[0, 2], [1, 3], [0, 2]]
    assert parts(3, 2) == [[0, 1, 2], [0, 1, 2]]
    assert parts(1, 2) == [[0], [0]]


class Elsewhere(Quadratics):
    """The test examples have their optimum at 5."""

    name = "elsewhere"

    def node(self, index):
        data = super().node(index)
        test = {"a": data.splits["test"]["a"], "b": torch.full((2, 1), 5.0, dtype=torch.float64)}
        return replace(data, splits={**data.splits, "test": test})


def test_the_step_before_an_evaluation_is_on_all_training_examples_and_is_not_kept(tmp_path):
    run = run_method(FIRST, Elsewhere, rounds=1, batch_size=1, steps=1, folder=tmp_path)
    (theta,) = run.values()
    rows = [row for row in run.folder.lines("nodes.jsonl") if row["phase"] == "evaluate"]
    adapted = [theta - 0.1 * a * (theta - b) for a, b in Elsewhere.nodes]
    expected = [0.5 * a * (v - 5) ** 2 for v, (a, _) in zip(adapted, Elsewhere.nodes, strict=True)]
    assert [row["metrics"]["test.loss"] for row in rows] == near(*expected)
    assert run.kept == {}
