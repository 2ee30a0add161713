"""The likelihood of a squared error, and the Fisher information that follows from it."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.fisher import diagonal_fisher
from fedapps.clients.local_part import NodeRound
from fedapps.clients.measurements import fisher_of_node, negative_log_likelihood
from fedapps.clients.parts.earlier_stages import Ewc
from fedapps.clients.parts.fisher_exchange import FisherPrior
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.task import VlnTask
from fedapps.tasks.vpr.task import VprTask
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss
from toy_nodes import NAMES, SEED, SETTINGS, at, initial, node, staged
from toys import ToyTask, arrays_of, same_bits

CPU = torch.device("cpu")


class SquaredErrors(ToyTask):
    """The toy task, which says that its loss is a mean squared error. ``factor`` multiplies the loss."""

    squared_residuals: ClassVar[int] = 1

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def loss(self, model, batch):
        return self.factor * mse_loss(model(batch["x"]), batch["y"])


class ThreeOutputs(SquaredErrors):
    """The loss of the task "lqr": half of the first two squared residuals and the third."""

    squared_residuals: ClassVar[int] = 3

    def loss(self, model, batch):
        return (WEIGHTS * (model(batch["x"]) - batch["y"]).square()).sum(1).mean()


WEIGHTS = torch.tensor([0.5, 0.5, 1.0])


def regression(x, y):
    """The data of a node in float64."""
    as_tensor = {name: torch.as_tensor(np.asarray(array, np.float64)) for name, array in (("x", x), ("y", y))}
    return NodeData("n", {"train": as_tensor})


def line(weights):
    """A linear model without bias."""
    model = nn.Linear(len(weights), 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(np.array([weights])))
    return model


def fisher(model, data, task=None, estimator="per-sample"):
    task = task or SquaredErrors()
    node_round = NodeRound(task, data, SETTINGS, {}, {}, SEED, CPU, lambda: model)
    return fisher_of_node(model, node_round, estimator)


def test_two_examples_by_hand():
    """f = x at x = 1, 2 with y = 2, 4: r = 1, 2 and σ² = (1 + 4) / 2; F is the mean of (r x)² = 1, 16 over σ⁴."""
    data = regression([[1.0], [2.0]], [[2.0], [4.0]])
    assert fisher(line([1.0]), data)["weight"].item() == pytest.approx(8.5 / 2.5**2)
    # The gradients of the squared error itself, 2 r x, give 4σ⁴ times as much.
    raw = diagonal_fisher(line([1.0]), [data.splits["train"]], SquaredErrors().loss)
    assert raw["weight"].item() == pytest.approx(4 * 8.5)


def test_with_noise_as_of_socnav1_the_squared_error_was_too_small_by_278():
    sigma = 0.03**0.5
    x = np.array([[1.0], [1.0], [-2.0], [-2.0]])
    data = regression(x, 3 * x + sigma * np.array([[1], [-1], [1], [-1]]))
    raw = diagonal_fisher(line([3.0]), [data.splits["train"]], SquaredErrors().loss)
    assert fisher(line([3.0]), data)["weight"].item() / raw["weight"].item() == pytest.approx(1 / 0.0036)


@pytest.mark.parametrize("sigma", [0.1, 0.5**0.5, 4.0])
def test_linear_regression_has_the_diagonal_of_xtx_over_the_variance(sigma):
    """Each row stands twice, with the residuals σ and -σ, so that squared residuals do not depend on x."""
    rng = np.random.default_rng(2)
    rows, weights = rng.normal(size=(20, 3)) * [1.0, 0.1, 5.0], np.array([0.5, -1.0, 2.0])
    x = np.repeat(rows, 2, axis=0)
    y = x @ weights + sigma * np.tile([1, -1], 20)
    found = fisher(line(weights), regression(x, y[:, None]))["weight"][0]
    np.testing.assert_allclose(found, np.diag(x.T @ x) / len(x) / sigma**2, rtol=1e-9)


def test_linear_regression_with_random_noise_has_it_in_the_limit():
    """Monte Carlo over the likelihood: y is drawn from it, and neither σ² nor w is known."""
    rng = np.random.default_rng(5)
    x, sigma = rng.normal(size=(40_000, 2)) * [1.0, 3.0], 0.17
    y = x @ [0.5, -1.0] + sigma * rng.normal(size=40_000)
    fitted = np.linalg.lstsq(x, y, rcond=None)[0]
    found = fisher(line(fitted), regression(x, y[:, None]))["weight"][0]
    np.testing.assert_allclose(found, np.array([1.0, 9.0]) / sigma**2, rtol=0.03)


@pytest.mark.parametrize("estimator", ["per-sample", "per-batch", "per-batch-scaled"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99), factor=st.floats(0.01, 100))
def test_a_multiple_of_the_squared_error_has_the_same_fisher_information(estimator, seed, factor):
    """Half of the squared error, the squared error, its sum over outputs: the same Gaussian noise."""
    torch.manual_seed(seed)
    data, model = ToyTask().data(seed % 5), ToyTask().build_model()
    expected = fisher(model, data, SquaredErrors(), estimator)
    for name, array in fisher(model, data, SquaredErrors(factor), estimator).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-8)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 99))
def test_it_is_that_of_torchs_gaussian_likelihood(seed):
    """The oracle: gradients of torch's negative log-likelihood with the variance of the residuals, one by one."""
    torch.manual_seed(seed)
    data, model = ToyTask().data(seed % 5), ToyTask().build_model()
    train = data.splits["train"]
    with torch.no_grad():
        variance = (model(train["x"]) - train["y"]).square().mean()
    expected = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
    for x, y in zip(train["x"], train["y"], strict=True):
        model.zero_grad()
        nn.GaussianNLLLoss(eps=0)(model(x[None]), y[None], variance.expand(1, 1)).backward()
        for name, parameter in model.named_parameters():
            expected[name] += parameter.grad.double().square() / len(train["x"])
    for name, array in fisher(model, data).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=1e-7)


def test_weighted_residuals_are_noise_of_different_variance():
    """The loss ½ r₁² + ½ r₂² + r₃² stands for the variances 2v, 2v and v, with v a third of the mean loss."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 3))
    model = nn.Linear(2, 3).double()
    residual = model(torch.as_tensor(x)).detach().numpy() - y
    weights = WEIGHTS.numpy()
    v = (weights * residual**2).sum(1).mean() / 3
    variance = v / weights
    found = fisher(model, regression(x, y), ThreeOutputs())
    np.testing.assert_allclose(found["bias"], (residual**2).mean(0) / variance**2, rtol=1e-6)
    expected = (residual[:, :, None] ** 2 * x[:, None, :] ** 2).mean(0) / variance[:, None] ** 2
    np.testing.assert_allclose(found["weight"], expected, rtol=1e-6)


def test_lambda_twice_the_variance_is_bayes_rule():
    """A mean, first of y = 0, 2 and then of y = 5, 7: F = 1/σ² with σ² = 1, and λ = 2 gives the mean of all four."""
    x = [[1.0], [1.0]]
    first = fisher(line([1.0]), regression(x, [[0.0], [2.0]]))["weight"].item()
    second, w = regression(x, [[5.0], [7.0]]).splits["train"], line([3.5])
    (gradient,) = torch.autograd.grad(SquaredErrors().loss(w, second), [w.weight])
    assert gradient.item() + 2.0 * first * (3.5 - 1.0) == pytest.approx(0)


def test_other_losses_are_taken_as_they_are():
    task, data = ToyTask(), ToyTask().data(1)
    assert negative_log_likelihood(task, task.build_model(), data, CPU) == task.loss


def test_residuals_of_zero_are_an_error():
    with pytest.raises(
        ValueError, match="node n: the model fits all training examples exactly, so the variance of their"
    ):
        fisher(line([2.0]), regression([[1.0], [3.0]], [[2.0], [6.0]]))


def reported(client):
    reply = client.train_round(initial(), at(1))
    return reply.arrays, arrays_of(reply.records["fisher.precision"])


def kept(client):
    reply = client.train_round(initial(), at(1))
    memory = client.private.load(before=2)
    return reply.arrays, {name: memory[f"memory.now.precision.{name}"] for name in NAMES[:3]}


@pytest.mark.parametrize(("part", "precision_of"), [(FisherPrior("per-sample"), reported), (Ewc(0.5), kept)])
def test_nodes_report_and_keep_it(tmp_path, part, precision_of):
    """The same training, but 1/(4σ⁴) times the squared gradients, with σ² at the trained parameters."""
    plain, raw = precision_of(node(tmp_path / "plain", part, data=staged(1)))
    arrays, found = precision_of(node(tmp_path / "gaussian", part, data=staged(1), task=SquaredErrors()))
    assert same_bits(arrays, plain)
    model, train = ToyTask().build_model(), staged(1).stages[0]["train"]
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    variance = mse_loss(model(train["x"]), train["y"]).item()
    for name in NAMES[:3]:
        np.testing.assert_allclose(found[name], raw[name] / (4 * variance**2), rtol=1e-4)


@pytest.mark.parametrize(
    ("task", "residuals"),
    [(SocialTask, 1), (LqrTask, 3), (DrivingTask, 0), (TextTask, 0), (VlnTask, 0), (VprTask, 0), (Task, 0)],
)
def test_the_tasks_say_what_their_losses_are(task, residuals):
    assert task.squared_residuals == residuals
