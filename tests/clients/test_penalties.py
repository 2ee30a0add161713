"""The quadratic prior, against autograd and against plain training."""

import numpy as np
import pytest
import torch
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase, run_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn
from toys import ToyTask, same_bits

FINITE = st.floats(-100, 100, allow_subnormal=False)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)


def gradient_of(prior, name, value):
    """The prior's gradient at ``value``, added to one that is zero."""
    parameter = nn.Parameter(torch.as_tensor(value))
    parameter.grad = torch.zeros_like(parameter)
    prior.add_gradient({name: parameter})
    return parameter.grad.numpy()


def tensors(data, shape, elements=FINITE):
    return torch.from_numpy(np.asarray(data.draw(hnp.arrays(np.float64, shape, elements=elements))))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_gradient_is_that_of_autograd(data):
    shape = data.draw(SHAPES)
    P, L, theta = tensors(data, shape, st.floats(0, 100)), tensors(data, shape), tensors(data, shape)
    theta.requires_grad_()
    (0.5 * (theta * P * theta).sum() - (L * theta).sum()).backward()
    mine = gradient_of(QuadraticPrior({"w": P}, {"w": L}), "w", theta.detach())
    np.testing.assert_allclose(mine, theta.grad.numpy(), rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(gradient_of(QuadraticPrior({}, {"w": L}), "w", theta.detach()), -L.numpy())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_around_pulls_towards_its_anchor(data):
    shape = data.draw(SHAPES)
    anchor, theta = tensors(data, shape), tensors(data, shape)
    precision = data.draw(st.floats(0, 10))
    prior = QuadraticPrior.around({"w": anchor}, precision)
    expected = precision * (theta - anchor).numpy()
    np.testing.assert_allclose(gradient_of(prior, "w", theta), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(gradient_of(prior, "w", anchor), np.zeros(shape))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_sum_of_priors_has_the_sum_of_gradients(data):
    shape = data.draw(SHAPES)
    first, second = (QuadraticPrior({"w": tensors(data, shape)}, {"w": tensors(data, shape)}) for _ in range(2))
    theta = tensors(data, shape)
    expected = gradient_of(first, "w", theta) + gradient_of(second, "w", theta)
    np.testing.assert_allclose(gradient_of(first + second, "w", theta), expected, rtol=1e-9, atol=1e-7)


def test_a_sum_keeps_what_only_one_of_them_has():
    left = QuadraticPrior.around({"a": torch.ones(1), "b": torch.ones(1)}, 1.0)
    right = QuadraticPrior.around({"b": torch.ones(1), "c": torch.ones(1)}, 2.0)
    both = left + right
    assert [float(gradient_of(both, name, torch.zeros(1))[0]) for name in "abc"] == [-1.0, -3.0, -2.0]


def test_a_sum_of_tensors_on_two_devices_is_on_the_first():
    here, there = torch.zeros(3), torch.ones(3, device="meta")
    both = QuadraticPrior.around({"w": there}, 0.1) + QuadraticPrior({"w": here}, {"w": here})
    assert {tensor.device.type for tensor in (*both.precision.values(), *both.linear.values())} == {"meta"}


def test_parameters_without_an_entry_are_free_and_frozen_ones_have_no_gradient():
    prior = QuadraticPrior.around({"w": torch.ones(2)}, 5.0)
    np.testing.assert_array_equal(gradient_of(prior, "other", torch.zeros(2)), [0, 0])
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    prior.add_gradient({"w": frozen})
    assert frozen.grad is None


@pytest.mark.parametrize("precision", [{"w": torch.tensor([2.0, 0.0])}, {}])
def test_a_parameter_that_the_loss_does_not_reach_follows_the_prior_alone(precision):
    prior = QuadraticPrior(precision, {"w": torch.tensor([1.0, 3.0])})
    unreached = nn.Parameter(torch.tensor([4.0, 5.0]))
    prior.add_gradient({"w": unreached})
    assert unreached.grad.tolist() == ([7.0, -3.0] if precision else [-1.0, -3.0])
    free = nn.Parameter(torch.ones(2))
    QuadraticPrior.around({"w": torch.ones(2)}, 5.0).add_gradient({"w": free})
    assert free.grad is None, "an optimizer leaves it alone, also with weight decay"


@pytest.mark.parametrize("precision", [-0.1, float("nan"), -1])
def test_a_negative_precision_is_an_error(precision):
    with pytest.raises(ValueError, match=f"precision = {precision}: must be at least 0"):
        QuadraticPrior.around({"w": torch.ones(1)}, precision)


def trained(prior, optimizer):
    torch.manual_seed(0)
    task = ToyTask()
    model, data = task.build_model(), task.data(2)
    training = LocalTraining(epochs=3, learning_rate=0.05, batch_size=4, optimizer=optimizer)
    plan = [Phase(training, prior=prior(model))]
    run_plan(model, plan, lambda size: task.batches(data, "train", size), task.loss)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def anchored(precision):
    return lambda model: QuadraticPrior.around({n: p.detach() + 1 for n, p in model.named_parameters()}, precision)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_precision_zero_is_plain_training_bit_for_bit(optimizer):
    plain = trained(lambda model: None, optimizer)
    assert same_bits(trained(anchored(0.0), optimizer), plain)
    assert same_bits(trained(lambda model: QuadraticPrior({}, {}), optimizer), plain)
    assert not same_bits(trained(anchored(0.5), optimizer), plain)
