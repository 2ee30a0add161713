"""Plans: which there are, which is best, and what the robot expects of the human."""

import pytest
import torch
from fedapps.tasks.driving.options import SETTINGS, Options, to_motion
from fedapps.tasks.driving.planner import (
    ConstantVelocity,
    Forecast,
    HoldLastControl,
    best_plan,
    candidate_plans,
    mpc_policy,
)
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.driving.world.sessions import Observation
from fedapps.tasks.driving.world.traffic import pair_cost
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_nobody_drives_against_a_recording():
    with pytest.raises(ValueError, match="recorded"):
        mpc_policy(ConstantVelocity(), SETTINGS["trials"], Options(scenario="trials"))
