"""The Fisher information, against single gradients and linear regression; the likelihood of a squared error."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from fedapps.clients.fisher import diagonal_fisher, fisher_of_node, negative_log_likelihood
from fedapps.clients.local_part import NodeRound
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.images.task import ImagesTask
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

from fedapps.config.run_config import RunConfig
from fedapps.methods.elastic_transfer import ElasticTransfer
from fedapps.methods.ewc import Ewc, EwcPart
from fedapps.methods.fedcurv import FedCurv, FisherPrior


def half_squares(model, batch):
    """The mean of ½ (y − f(x))²: a negative log-likelihood of unit variance."""
    return 0.5 * mse_loss(model(batch["x"]), batch["y"])


def problem(examples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))
    x, y = torch.randn(examples, 3, generator=generator), torch.randn(examples, 1, generator=generator)
    return model, {"x": x, "y": y}


def in_batches(data, size):
    return [{name: tensor[i : i + size] for name, tensor in data.items()} for i in range(0, len(data["x"]), size)]


def brute_force(model, batches):
    """Mean over the batches, by their size, of the squared gradient of each batch."""
    model.eval()
    total, count = dict.fromkeys(dict(model.named_parameters()), 0.0), 0
    for batch in batches:
        model.zero_grad()
        half_squares(model, batch).backward()
        size = len(batch["x"])
        total = {n: total[n] + size * p.grad.double() ** 2 for n, p in model.named_parameters()}
        count += size
    return {name: value / count for name, value in total.items()}


@pytest.mark.parametrize("vectorised", [True, False])
@settings(max_examples=25, deadline=None)
@given(examples=st.integers(1, 9), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_per_sample_is_the_mean_of_the_squares_of_single_gradients(vectorised, examples, size, seed):
    model, data = problem(examples, seed)
    found = diagonal_fisher(model, in_batches(data, size), half_squares, vectorised=vectorised)
    expected = brute_force(model, in_batches(data, 1))
    assert list(found) == list(expected)
    for name, value in found.items():
        assert value.dtype == torch.float64
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("vectorised", [True, False])
def test_linear_regression_has_a_closed_form(vectorised):
    # The gradient of ½ (y − w·x − b)² is −r x and −r with the residual r = y − w·x − b.
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(20, 3)), rng.normal(size=(20, 1))
    model = nn.Linear(3, 1).double()
    residual = y - x @ model.weight.detach().numpy().T - model.bias.item()
    data = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    found = diagonal_fisher(model, in_batches(data, 6), half_squares, vectorised=vectorised)
    np.testing.assert_allclose(found["weight"], [(residual**2 * x**2).mean(0)], rtol=1e-12)
    np.testing.assert_allclose(found["bias"], [(residual**2).mean()], rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_per_batch_squares_the_gradients_of_batches(size):
    model, data = problem(7)
    found = diagonal_fisher(model, in_batches(data, size), half_squares, "per-batch")
    expected = brute_force(model, in_batches(data, size))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-12)


def test_scaling_makes_up_for_the_batch_size():
    model, data = problem(6)
    plain, scaled = (
        diagonal_fisher(model, in_batches(data, 3), half_squares, f"per-batch{suffix}") for suffix in ("", "-scaled")
    )
    for name in plain:
        np.testing.assert_allclose(scaled[name], 3 * plain[name], rtol=1e-12)


def test_the_model_is_left_as_it_was():
    task = ToyTask()
    model = task.build_model()
    model.head.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for estimator in ("per-sample", "per-batch"):
        diagonal_fisher(model, [task.data(1).splits["train"]], task.loss, estimator)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert model.encoder.training
    assert not model.head.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("vectorised", [True, False])
def test_frozen_and_unused_parameters_have_zeros(vectorised):
    model, data = problem(4)
    model.unused = nn.Linear(2, 2)
    model[0].weight.requires_grad_(False)

    def loss_of(model, batch):
        return half_squares(nn.Sequential(*list(model)[:4]), batch)

    found = diagonal_fisher(model, [data], loss_of, vectorised=vectorised)
    for name in ("0.weight", "unused.weight", "unused.bias"):
        assert not found[name].any()
    assert found["0.bias"].all()


def test_a_loss_with_control_flow_says_what_to_do():
    def loss_of(model, batch):
        loss = half_squares(model, batch)
        return loss * 2 if loss > 0 else loss

    model, data = problem(3)
    with pytest.raises(RuntimeError, match="one by one with vectorised = False"):
        diagonal_fisher(model, [data], loss_of)
    assert all(module.training for module in model.modules())
    single = diagonal_fisher(model, [data], loss_of, vectorised=False)
    for name, value in diagonal_fisher(model, [data], half_squares).items():
        np.testing.assert_allclose(single[name], 4 * value, rtol=1e-4, atol=1e-9)


def test_no_examples_and_an_unknown_estimator_are_errors():
    model, data = problem(3)
    with pytest.raises(ValueError, match="no examples"):
        diagonal_fisher(model, [], half_squares)
    with pytest.raises(ValueError, match="estimator = 'exact': must be one of 'per-sample', 'per-batch', "):
        diagonal_fisher(model, [data], half_squares, "exact")


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


@pytest.mark.parametrize("sigma", [0.1, 0.5**0.5, 4.0])
def test_linear_regression_has_the_diagonal_of_xtx_over_the_variance(sigma):
    """Each row stands twice, with the residuals σ and -σ, so that squared residuals do not depend on x."""
    rng = np.random.default_rng(2)
    rows, weights = rng.normal(size=(20, 3)) * [1.0, 0.1, 5.0], np.array([0.5, -1.0, 2.0])
    x = np.repeat(rows, 2, axis=0)
    y = x @ weights + sigma * np.tile([1, -1], 20)
    found = fisher(line(weights), regression(x, y[:, None]))["weight"][0]
    np.testing.assert_allclose(found, np.diag(x.T @ x) / len(x) / sigma**2, rtol=1e-9)


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


class DrawnSides(SquaredErrors):
    """Labels one standard deviation above the model's output."""

    def drawn_labels(self, model, batch, temperature):
        return {**batch, "y": model(batch["x"]) + (temperature / 2) ** 0.5}


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("per-sample", 8.5 / 2.5**2),  # the mean of (r x)² = 1, 16 over σ⁴, with r = 1, 2 and σ² = 2.5
        ("loss-per-sample", 4 * 8.5),  # the mean of (2 r x)²
        ("per-batch", 2.5**2 / 2.5**2),  # the squared mean of r x = 1, 4 over σ⁴
        ("loss-per-batch", 4 * 2.5**2),  # the squared mean of 2 r x
        ("true", 2.5 / 2.5),  # the mean of x² = 1, 4 over σ²: no residual of the data
    ],
)
def test_each_estimator_of_two_examples_by_hand(estimator, expected):
    data = regression([[1.0], [2.0]], [[2.0], [4.0]])
    assert fisher(line([1.0]), data, DrawnSides(), estimator)["weight"].item() == pytest.approx(expected)


@pytest.mark.parametrize("estimator", ["loss-per-sample", "loss-per-batch"])
def test_the_loss_itself_has_a_fisher_information_of_zero_where_it_has_no_residuals(estimator):
    data = regression([[1.0], [3.0]], [[2.0], [6.0]])
    assert fisher(line([2.0]), data, estimator=estimator)["weight"].item() == 0


def test_a_task_that_cannot_draw_labels_has_no_true_fisher_information():
    with pytest.raises(NotImplementedError, match="cannot draw labels from a model"):
        fisher(line([1.0]), regression([[1.0]], [[2.0]]), SquaredErrors(), "true")


@pytest.mark.parametrize("method", [Ewc, FedCurv, ElasticTransfer])
def test_that_is_refused_before_a_run_starts(method):
    asked = method(method.Options(estimator="true"))
    ((names, message),) = asked.conflicts(RunConfig(), LqrTask())
    assert (names, message) == (
        {"methods"},
        f"{method.name}: estimator = true: task 'lqr' cannot draw labels from a model; choose another estimator",
    )
    assert not list(asked.conflicts(RunConfig(), SocialTask()))


@pytest.mark.parametrize("method", [FedCurv, ElasticTransfer])
def test_a_task_without_single_examples_needs_an_estimator_of_batches(method):
    ((_, message),) = method().conflicts(RunConfig(), VprTask())
    assert message.endswith("because its examples are mined with the model in training; choose per-batch")
    assert not list(method(method.Options(estimator="per-batch")).conflicts(RunConfig(), VprTask()))


def test_labels_of_a_scored_scene_are_a_deviation_away_and_those_of_images_have_the_models_probabilities():
    torch.manual_seed(0)
    scores = SocialTask().drawn_labels(lambda x: x, {"x": torch.full((1000,), 0.5), "score": torch.zeros(1000)}, 0.02)
    assert scores["score"].unique().tolist() == pytest.approx([0.4, 0.6])
    assert scores["score"].mean().item() == pytest.approx(0.5, abs=0.02)
    logits = torch.tensor([0.25, 0.75]).log().expand(4000, 2)
    labels = ImagesTask().drawn_labels(lambda x: x, {"image": logits}, 1.0)["label"]
    assert labels.float().mean().item() == pytest.approx(0.75, abs=0.03)


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


@pytest.mark.parametrize(("part", "precision_of"), [(FisherPrior("per-sample"), reported), (EwcPart(0.5), kept)])
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
