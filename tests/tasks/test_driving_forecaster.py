"""The forecaster: its distributions, its two posteriors, and forecasts of many plans at once."""

import math

import pytest
import torch
from fedapps.tasks.driving.planner import Forecaster, Gaussian, kl_divergence
from hypothesis import given, settings
from hypothesis import strategies as st


def forecaster(posterior: str = "literal", context: bool = True) -> Forecaster:
    torch.manual_seed(0)
    return Forecaster(12, hidden=6, latent=3, posterior=posterior, context=context)


def windows(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(count, 4, 12), (count, 5, 2), (count, 5, 2), (count, 3)]
    history, robot, human, noise = (torch.randn(shape, generator=generator) for shape in shapes)
    return history, robot, human, noise


def test_kl_by_hand():
    # KL(N(1, 4) || N(0, 1)) = (4 + 1 - 1 - ln 4) / 2, and KL(N(0, 1) || N(1, 4)) = (1/4 + 1/4 - 1 + ln 4) / 2
    wide = Gaussian(torch.tensor([[1.0]]), torch.tensor([[math.log(4)]]))
    unit = Gaussian(torch.tensor([[0.0]]), torch.tensor([[0.0]]))
    assert kl_divergence(wide).item() == pytest.approx((4 - math.log(4)) / 2)
    assert kl_divergence(unit, wide).item() == pytest.approx((math.log(4) - 0.5) / 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=8, max_size=8))
def test_kl_is_never_negative_and_zero_to_itself(numbers):
    first, second, third, fourth = torch.tensor(numbers, dtype=torch.float64).view(4, 2)
    q, p = Gaussian(first, second), Gaussian(third, fourth)
    assert kl_divergence(q, p) >= -1e-12
    assert kl_divergence(q, q).item() == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(kl_divergence(q), kl_divergence(q, Gaussian(0 * first, 0 * first)))


def test_an_encoder_that_says_nothing_costs_nothing():
    model = forecaster()
    torch.nn.init.zeros_(model.encoder.weight)
    torch.nn.init.zeros_(model.encoder.bias)
    history, robot, human, noise = windows(7)
    reconstruction, divergence = model(history, robot, human, noise)
    assert not divergence.any()
    expected = ((model.decode(noise, robot, history[:, -1]) - human) ** 2).mean(dim=(1, 2))
    torch.testing.assert_close(reconstruction, expected)


def test_the_literal_posterior_sees_no_human_future_and_the_other_does():
    history, robot, human, noise = windows(4)
    for posterior, differs in (("literal", False), ("cvae", True)):
        model = forecaster(posterior)
        _, before = model(history, robot, human, noise)
        _, after = model(history, robot, human + 1, noise)
        assert (not torch.equal(before, after)) is differs
    assert {name.split(".")[0] for name in forecaster("cvae").state_dict()} > {
        name.split(".")[0] for name in forecaster().state_dict()
    }


def test_forecast_of_many_plans_equals_one_at_a_time():
    model = forecaster()
    history = windows(3)[0]
    plans = torch.randn(3, 4, 5, 2)
    noise = torch.randn(3, 2, 3)
    together = model.forecast(history, plans, noise)
    assert together.shape == (3, 4, 2, 5, 2)
    assert together.abs().max() < 1
    for session in range(3):
        one = history[session : session + 1]
        for plan in range(4):
            robot = plans[session : session + 1, plan]
            spread = model.infer(model.read_past(one), robot)
            for draw in range(2):
                z = spread.at(noise[session : session + 1, draw])
                expected = model.decode(z, robot, one[:, -1])[0]
                torch.testing.assert_close(together[session, plan, draw], expected)


def test_without_context_the_newest_state_reaches_the_decoder_only_through_z():
    robot, z = torch.randn(2, 5, 2), torch.randn(2, 3)
    newest = torch.randn(2, 12)
    for context in (True, False):
        model = forecaster(context=context)
        same = torch.equal(model.decode(z, robot, newest), model.decode(z, robot, newest + 1))
        assert same is (not context)


def test_no_windows():
    reconstruction, divergence = forecaster()(*windows(0))
    assert reconstruction.shape == divergence.shape == (0,)
