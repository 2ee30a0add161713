"""What makes a step of local training smaller: a clipped gradient, a falling rate, rates per parameter."""

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.training import run_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toys import same_bits
from training_plans import DATA, TASK, Scalar, phase, scalar_training, toy_model, train

PARAMETERS = ["encoder.weight", "head.weight", "head.bias"]

# -- the size of the gradient and of the rate ------------------------------------------------------------------


@pytest.mark.parametrize(("clip_norm", "gradient"), [(0.0, 4.0), (3.0, 3.0), (4.5, 4.0)])
def test_the_gradient_is_clipped_to_its_norm(clip_norm, gradient):
    model = Scalar(1.0)
    scalar_training(model, phase(optimizer="sgd", epochs=1, clip_norm=clip_norm))
    assert model.w.item() == pytest.approx(1 - 0.1 * gradient)


def test_the_norm_is_of_all_trainable_parameters_with_the_prior():
    """The loss gives gradient 3, the prior 4 at another parameter: together of norm 5, clipped to 1."""
    model = nn.ParameterDict({"v": torch.tensor(0.0), "w": torch.tensor(0.0), "frozen": torch.tensor(1.0)})
    prior = QuadraticPrior.around({"w": torch.tensor(-4.0)}, 1.0)
    run_plan(
        model,
        [phase(optimizer="sgd", epochs=1, clip_norm=1.0, prior=prior, trainable=["v", "w"], learning_rate=1.0)],
        lambda batch_size: iter([{"x": torch.zeros(1)}]),
        lambda net, batch: 3 * net["v"] + 0 * net["w"] + 1000 * net["frozen"],
    )
    assert [model[name].item() for name in ("v", "w", "frozen")] == [pytest.approx(-0.6), pytest.approx(-0.8), 1.0]


@settings(max_examples=25, deadline=None)
@given(clip_norm=st.floats(1e-3, 10))
def test_no_step_of_sgd_is_longer_than_the_clipped_gradient(clip_norm):
    start = get_arrays(toy_model(), PARAMETERS)
    end = train(toy_model(), phase(optimizer="sgd", steps=1, clip_norm=clip_norm, learning_rate=1.0))[1]
    moved = np.sqrt(sum(float(np.square(end[name] - start[name]).sum()) for name in PARAMETERS))
    assert moved <= clip_norm * (1 + 1e-4)


@pytest.mark.parametrize("changes", [{"epochs": 4}, {"epochs": 0, "steps": 4}])
def test_the_rate_falls_linearly_to_zero(changes):
    """Against torch's scheduler: the n-th of n steps still has the rate / n, the next one would have none."""
    model, theirs = Scalar(1.0), Scalar(1.0)
    scalar_training(model, phase(optimizer="sgd", linear_decay=True, **changes))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=4)
    by_hand = 1.0
    for step in range(4):
        by_hand -= 0.1 * (4 - step) / 4 * 4 * by_hand
        optimizer.zero_grad()
        (2 * theirs.w**2).sum().backward()
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0)
    assert model.w.item() == pytest.approx(by_hand, rel=1e-6)
    assert model.w.item() == pytest.approx(theirs.w.item(), rel=1e-6)


def test_the_decay_knows_how_many_batches_an_epoch_has():
    """6 examples in batches of 4, 2 epochs: 4 steps, in the order of a phase without decay."""
    seen = []

    def loss(net, batch):
        seen.append(len(batch["x"]))
        return TASK.loss(net, batch)

    def run(**changes):
        torch.manual_seed(7)
        return run_plan(toy_model(), [phase(**changes)], lambda size: TASK.batches(DATA, "train", size), loss)

    assert run(linear_decay=True).steps == run().steps == 4
    assert seen == [4, 2, 4, 2] * 2
    assert train(toy_model(), phase(linear_decay=True, epochs=0))[0].steps == 0


def test_a_single_step_of_a_decaying_rate_has_all_of_it():
    plain = train(toy_model(), phase(steps=1))[1]
    assert same_bits(train(toy_model(), phase(steps=1, linear_decay=True))[1], plain)


# -- rates -----------------------------------------------------------------------------------------------------


def ones(full):
    return {
        name: torch.ones_like(parameter) if full else torch.ones(())
        for name, parameter in toy_model().named_parameters()
    }


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("full", [False, True], ids=["per tensor", "per parameter"])
def test_rates_of_one_change_no_bit(optimizer, full):
    plain = train(toy_model(), phase(optimizer=optimizer))[1]
    assert same_bits(train(toy_model(), phase(optimizer=optimizer, rates=ones(full)))[1], plain)
    assert same_bits(train(toy_model(), phase(optimizer=optimizer, rates={}))[1], plain)


def test_ones_among_other_rates_change_no_bit():
    """Not even the last one, which ``old + 1 * (new - old)`` would round away."""
    start = torch.linspace(-3, 3, 101)
    rates = {"w": torch.ones(101)}
    rates["w"][0] = 0.3
    ends = []
    for given_rates in (None, rates):
        model = Scalar()
        model.w = nn.Parameter(start.clone())
        scalar_training(model, phase(optimizer="sgd", epochs=1, rates=given_rates), target=0.1)
        ends.append(model.w.detach().numpy())
    assert ends[0][1:].tobytes() == ends[1][1:].tobytes()
    assert ends[0][0] != ends[1][0]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_rate_of_zero_leaves_a_tensor_untouched(optimizer):
    start = get_arrays(toy_model(), toy_model().state_dict())
    _, arrays = train(toy_model(), phase(optimizer=optimizer, rates={"head.weight": torch.zeros(())}))
    assert arrays["head.weight"].tobytes() == start["head.weight"].tobytes()
    assert (arrays["head.bias"] != start["head.bias"]).all()


@settings(max_examples=25, deadline=None)
@given(
    rate=st.floats(0, 1),
    others=st.lists(st.floats(0, 1), min_size=4, max_size=4),
    optimizer=st.sampled_from(["adam", "sgd"]),
)
def test_a_rate_moves_its_share_of_the_step(rate, others, optimizer):
    rates = {
        "head.weight": torch.tensor(rate, dtype=torch.float64),
        "encoder.weight": torch.tensor(others, dtype=torch.float64).reshape(2, 2),
    }
    start = get_arrays(toy_model(), toy_model().state_dict())
    full = train(toy_model(), phase(steps=1, optimizer=optimizer))[1]
    part = train(toy_model(), phase(steps=1, optimizer=optimizer, rates=rates))[1]
    for name, scale in rates.items():
        moved = start[name] + scale.numpy() * (full[name].astype(float) - start[name])
        np.testing.assert_allclose(part[name], moved, rtol=1e-6, atol=1e-7)
    assert part["head.bias"].tobytes() == full["head.bias"].tobytes()


def test_adam_cancels_scaled_gradients_but_not_rates():
    start = get_arrays(toy_model(), toy_model().state_dict())
    plain = train(toy_model(), phase(steps=1))[1]
    scaled = train(toy_model(), phase(steps=1), scale=0.25)[1]
    slowed = train(toy_model(), phase(steps=1, rates={"head.bias": torch.tensor(0.25)}))[1]
    np.testing.assert_allclose(scaled["head.bias"], plain["head.bias"], rtol=1e-5)
    step = plain["head.bias"] - start["head.bias"]
    np.testing.assert_allclose(slowed["head.bias"] - start["head.bias"], 0.25 * step, rtol=1e-4)
