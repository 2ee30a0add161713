"""The forecaster of the human, the other predictors, and the planner."""

import math

import numpy as np
import pytest
import torch
from fedapps.tasks.driving.data import Session, cut
from fedapps.tasks.driving.options import SETTINGS, Options, to_motion
from fedapps.tasks.driving.planner import (
    ConstantVelocity,
    Forecast,
    Forecaster,
    Gaussian,
    HoldLastControl,
    best_plan,
    candidate_plans,
    kl_divergence,
    mpc_policy,
    reconstruction,
    scores,
)
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.driving.world.sessions import Observation
from fedapps.tasks.driving.world.traffic import pair_cost
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
    controls, divergence = model(history, robot, human, noise)
    assert not divergence.any()
    torch.testing.assert_close(controls, model.decode(noise, robot, history[:, -1]))


def test_the_error_of_controls_and_of_the_path_by_hand():
    """A person at rest who walks to (3, 4) and stays there; no control leaves the forecast at rest."""
    walking, still = SETTINGS["pedestrians"], torch.zeros(1, 2, 2)
    to, back = torch.tensor([3.0, 4.0]) / 0.16 / 1.5, -torch.tensor([3.0, 4.0]) / 0.16 / 1.5
    human = torch.stack((to, back))[None]
    batch = {
        "current": torch.zeros(1, 2, 4),
        "human_future": human,
        "human_path": torch.tensor([[[3.0, 4.0], [3.0, 4.0]]]),
    }
    for loss, expected in (("controls", float((human**2).mean())), ("path", 5.0)):
        options = Options(scenario="pedestrians", history=3, min_history=3, horizon=2, loss=loss)
        assert reconstruction(walking, options, batch, still).tolist() == pytest.approx([expected])
        assert reconstruction(walking, options, batch, human).tolist() == pytest.approx([0.0], abs=1e-6)


def test_errors_along_the_road_by_hand():
    """Without controls a human drives on at 20 m/s; here it is k m ahead after k steps: (10 - 5)² and so on."""
    model, still, current = forecaster(), torch.zeros(1, 20, 2), torch.zeros(1, 2, 4)
    for layer in (model.encoder, model.controls):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    current[:, 1, 3] = 20
    path = torch.arange(1.0, 21)[None, :, None].expand(1, 20, 2)
    batch = {"history": windows(1)[0], "robot_future": still, "human_future": still, "human_path": path}
    options = Options(scenario="trials", loss="controls")
    found = scores(model, SETTINGS["trials"], options, {**batch, "current": current}, "test")
    errors = {"0.5s": 25.0, "1.0s": 100.0, "1.5s": 225.0}
    expected = {
        f"test.{name}_{ahead}": error for ahead, error in errors.items() for name in ("error", "constant_velocity")
    }
    assert found == pytest.approx(expected | {"test.elbo": 0.0, "test.reconstruction": 0.0, "test.kl": 0.0})


@pytest.mark.parametrize(("scenario", "throttle"), [("trials", 0.0), ("lane-swap", 0.06)])
def test_true_controls_lead_to_the_true_path_beside_the_middle_of_the_road(scenario: str, throttle: float):
    states, controls = np.zeros((40, 2, 4)), np.zeros((40, 2, 2))
    states[:, 1, 0], states[..., 3], controls[..., 0] = 3.5, 20, throttle
    states[..., 1] = 2 * np.arange(40)[:, None]
    options, setting = Options(scenario=scenario, loss="path"), SETTINGS[scenario]
    batch = cut(setting, options, [Session(0, "train", states, controls)])
    assert float(reconstruction(setting, options, batch, batch["human_future"]).max()) < 0.01


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
    controls, divergence = forecaster()(*windows(0))
    assert (controls.shape, divergence.shape) == ((0, 5, 2), (0,))


SETTING = SETTINGS["lane-swap"]
OPTIONS = Options(hidden=4, latent=2, samples=3)


def observed(robot: list[float], human: list[float], steps: int = 6) -> Observation:
    """Cars that have rolled to (x, y, heading, speed) without a control, give or take friction."""
    states = torch.tensor([robot, human]).repeat(1, steps, 1, 1)
    return Observation(states, torch.zeros(1, steps, 2, 2))


def test_candidates():
    hold = candidate_plans("hold", 20)
    assert hold.shape == (9, 20, 2)
    assert len({tuple(plan[0].tolist()) for plan in hold}) == 9
    assert (hold == hold[:, :1]).all()
    assert not hold[0].any()  # ties go to coasting
    blocks = candidate_plans("blocks", 20)
    assert blocks.shape == (729, 20, 2)
    assert len({tuple(plan[:3].flatten().tolist()) for plan in blocks}) == 729
    assert (blocks[:, 3:] == blocks[:, 2:3]).all()


@pytest.mark.parametrize(("gap", "throttle"), [(5.0, 1.5), (-5.0, -1.5)])
def test_a_robot_opens_the_gap_it_has(gap, throttle):
    """Ahead of a steady human it accelerates, behind one it brakes; steering would leave the lane."""
    policy = mpc_policy(ConstantVelocity(), SETTING, OPTIONS)
    answer = policy(observed([0.0, gap, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]))
    torch.testing.assert_close(answer, torch.tensor([[[throttle, 0.0]]]).expand(1, 3, 2))


def test_sessions_with_a_gap_are_left_to_the_lane_change():
    near, far = (observed([0.0, gap, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]) for gap in (5.0, 12.5))
    both = Observation(torch.cat((far.states, near.states)), torch.cat((far.controls, near.controls)))
    answer = mpc_policy(ConstantVelocity(), SETTING, OPTIONS)(both)
    assert answer[:, 0, 0].tolist() == [0.0, 1.5]


def test_a_robot_behind_the_gray_car_does_not_run_into_it():
    states = torch.tensor([[0.0, 5, 0, 22], [3.5, 0, 0, 20], [0, 13.0, 0, 19]]).repeat(1, 6, 1, 1)
    policy = mpc_policy(ConstantVelocity(), SETTINGS["three-cars"], Options(scenario="three-cars"))
    assert policy(Observation(states, torch.zeros(1, 6, 3, 2)))[0, 0, 0] == -1.5


def test_expectations_by_hand():
    seen = observed([0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0])
    seen.controls[:, -1, 1, 0] = 1.5
    motions, plans = to_motion(seen.states), candidate_plans("hold", 10)[None]
    straight = ConstantVelocity()(motions, seen.controls, plans)
    assert straight.shape == (1, 1, 1, 10, 4)
    torch.testing.assert_close(straight[0, 0, 0, 9], torch.tensor([3.5, 20.0, 0.0, 20.0]))
    held = HoldLastControl(SETTING)(motions, seen.controls, plans)
    # a second of throttle 1.5 against friction 0.06: 1.44 m/s more, 0.72 m further
    torch.testing.assert_close(held[0, 0, 0, 9], torch.tensor([3.5, 20.72, 0.0, 21.44]))


def test_a_forecast_needs_history():
    """With fewer steps than any training window the robot expects what it did before it could forecast."""
    model = DrivingTask(OPTIONS).build_model()
    forecast, plans = Forecast(model, SETTING, OPTIONS), candidate_plans("hold", 20)[None]
    for steps, shape in ((4, (1, 1, 1, 20, 4)), (5, (1, 9, 3, 20, 4))):
        seen = observed([0.0, 5.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0], steps)
        assert forecast(to_motion(seen.states), seen.controls, plans).shape == shape


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["hold", "blocks"]))
def test_the_best_plan_is_the_one_a_loop_finds(seed, kind):
    """Exhaustive search over plans that stay in the lane; skipping the others changes nothing."""
    torch.manual_seed(seed)
    model = DrivingTask(OPTIONS).build_model()
    plans = candidate_plans(kind, 20)[::7] if kind == "blocks" else candidate_plans(kind, 20)
    offset = torch.randn(2, 1) * 4
    bicycle = torch.tensor([[0.0, 0.0, 0.0, 20.0], [3.5, 0.0, 0.0, 20.0]]).repeat(2, 6, 1, 1)
    bicycle[:, :, 0, 1] = offset
    bicycle[:, :, :, 3] += torch.randn(2, 1, 2)
    motions, controls = to_motion(bicycle), torch.zeros(2, 6, 2, 2)
    forecast = Forecast(model, SETTING, OPTIONS)
    torch.manual_seed(1)
    chosen = best_plan(forecast, SETTING, motions, controls, plans)
    torch.manual_seed(1)
    human = forecast(motions, controls, plans.expand(2, -1, -1, -1))
    for session in range(2):
        costs = {}
        for c, plan in enumerate(plans):
            robot = SETTING.roll_out(motions[session, -1, 0], plan)
            if (robot[:, 0].abs() <= 0.75).all():
                relative = robot - human[session, c]
                costs[c] = pair_cost(relative[..., :2], relative[..., 2:]).mean(dim=0).sum().item()
        assert costs[int(chosen[session])] == pytest.approx(min(costs.values()), rel=1e-4)
