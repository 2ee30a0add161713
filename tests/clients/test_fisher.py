"""The Fisher information, against gradients taken one by one and against linear regression."""

import numpy as np
import pytest
import torch
from fedapps.clients.fisher import diagonal_fisher
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss
from toys import ToyTask


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


@pytest.mark.parametrize("size", [2, 3, 7])
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


def test_scaled_batches_estimate_the_samples_where_the_mean_gradient_is_zero():
    # f = w at w = 0 with targets ±1 in equal parts: r = ±1, each example's squared gradient is 1.
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return self.w.expand(len(x), 1)

    y = torch.tensor([[1.0], [-1.0]]).repeat(4000, 1)[torch.randperm(8000, generator=torch.Generator().manual_seed(0))]
    data = {"x": torch.zeros(8000, 1), "y": y}
    found = {
        estimator: float(diagonal_fisher(Constant(), in_batches(data, 8), half_squares, estimator)["w"])
        for estimator in ("per-sample", "per-batch", "per-batch-scaled")
    }
    assert found == {
        "per-sample": 1.0,
        "per-batch": pytest.approx(1 / 8, rel=0.15),
        "per-batch-scaled": pytest.approx(1, rel=0.15),
    }


@pytest.mark.parametrize("estimator", ["per-batch", "per-batch-scaled"])
def test_batches_of_one_are_samples(estimator):
    model, data = problem(5)
    samples = diagonal_fisher(model, in_batches(data, 5), half_squares)
    for name, value in diagonal_fisher(model, in_batches(data, 1), half_squares, estimator).items():
        np.testing.assert_allclose(value, samples[name], rtol=1e-4, atol=1e-9)


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
