"""Cars in motion: the bicycle against CARLO's scalar formulas, the point mass, cost and lane change."""

from math import atan, cos, pi, sin, tan

import pytest
import torch
from fedapps.tasks.driving.world import traffic
from hypothesis import given, settings
from hypothesis import strategies as st

STARTS = st.tuples(st.floats(-5, 5), st.floats(-50, 50), st.floats(-0.5, 0.5), st.floats(0, 30))
CONTROLS = st.lists(
    st.tuples(st.sampled_from(traffic.THROTTLES), st.sampled_from(traffic.STEERS)), min_size=1, max_size=20
)


def carlo_tick(x, y, heading, speed, throttle, steer):
    """CARLO's ``Entity.tick``: heading counter-clockwise from +x, steer to the left."""
    heading, steer = pi / 2 - heading, -steer
    beta = atan(2 / (2 + 2) * tan(steer))
    new_speed = max(speed + (throttle - 0.06) * 0.1, 0.0)
    new_heading = heading + ((speed + new_speed) / 2.0) * sin(beta) * 0.1 / 2.0
    angle = (heading + new_heading) / 2.0 + beta
    x, y = x + (speed + new_speed) * cos(angle) * 0.1 / 2, y + (speed + new_speed) * sin(angle) * 0.1 / 2
    return x, y, pi / 2 - new_heading, new_speed


@settings(deadline=None, max_examples=50)
@given(STARTS, CONTROLS)
def test_step_and_rollout_are_carlos(start, controls):
    state, expected, stepped = start, [], [torch.tensor(start, dtype=torch.float64)]
    for control in controls:
        state = carlo_tick(*state, *control)
        expected.append(state)
        stepped.append(traffic.step(stepped[-1], torch.tensor(control, dtype=torch.float64)))
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(stepped[1:]), expected)
    rolled = traffic.rollout(stepped[0], torch.tensor(controls, dtype=torch.float64))
    torch.testing.assert_close(rolled, expected)


def test_rollout_stops_at_standstill_and_drives_off_again():
    controls = torch.tensor([[-1.5, 0.0]] * 3 + [[1.5, 0.0]] * 2)
    speeds = traffic.rollout(torch.tensor([0.0, 0.0, 0.0, 0.2]), controls)[:, 3]
    torch.testing.assert_close(speeds, torch.tensor([0.044, 0.0, 0.0, 0.144, 0.288]))


def test_rollout_broadcasts_candidates_and_is_differentiable():
    state = torch.tensor([[0.0, 0.0, 0.0, 20.0], [3.5, 5.0, 0.1, 18.0]])
    controls = torch.zeros(9, 20, 2, requires_grad=True)
    paths = traffic.rollout(state[:, None], controls)
    assert paths.shape == (2, 9, 20, 4)
    paths.sum().backward()
    assert controls.grad is not None
    assert torch.isfinite(controls.grad).all()


def test_point_mass_by_hand():
    path = traffic.point_mass_rollout(torch.tensor([0.0, 10.0, 0.0, 20.0]), torch.tensor([[1.0, 0.0], [0.0, -2.0]]))
    expected = torch.tensor([[0.005, 12.0, 0.1, 20.0], [0.015, 13.99, 0.1, 19.8]])
    torch.testing.assert_close(path, expected)


@pytest.mark.parametrize(
    ("wish", "allowed"), [((0.7, 0.019), (0.0, 0.0)), ((0.8, -0.021), (1.5, -0.04)), ((-9.0, 9.0), (-1.5, 0.04))]
)
def test_quantise(wish, allowed):
    torch.testing.assert_close(traffic.quantise(torch.tensor(wish)), torch.tensor(allowed))


def test_cost_by_hand():
    robot = torch.tensor([0.0, 3.0, 0.0, 21.0])
    human = torch.tensor([4.0, 0.0, 0.0, 19.0])
    assert traffic.stage_cost(robot, human).item() == pytest.approx(-3 * 3 * 2 + 5000 / 5)
    assert traffic.stage_cost(human, robot).item() == pytest.approx(982.0)  # symmetric in the two cars
    assert traffic.stage_cost(robot, human, floor=990.0).item() == 990.0
    assert traffic.stage_cost(robot, human, floor=-1e9).item() == pytest.approx(982.0)


def test_cost_of_touching_cars_is_finite():
    car = torch.tensor([0.0, 0.0, 0.0, 20.0])
    assert traffic.stage_cost(car, car).item() == pytest.approx(50_000.0)


def test_lane_change_gains_solve_their_riccati_equation():
    (k_lateral, k_heading), k_speed = traffic.gains()
    # one-dimensional: p = 1 + p - (p b)^2 / (r + p b^2) with b = 0.1, r = 1 / 1.5^2; k = p b / (r + p b^2)
    b, r = 0.1, 1 / 2.25
    p = (b**2 + (b**4 + 4 * b**2 * r) ** 0.5) / (2 * b**2)
    assert k_speed == pytest.approx(p * b / (r + p * b**2))
    assert 0 < k_lateral < k_heading


@settings(deadline=None, max_examples=20)
@given(st.floats(15, 28), st.sampled_from([-3.5, 3.5]))
def test_a_lane_change_settles_within_five_seconds_and_keeps_its_speed(speed, lane):
    car, target = torch.tensor([0.0, 0.0, 0.0, speed]), torch.tensor(speed)
    furthest = 0.0
    for t in range(100):
        control = traffic.lane_change_control(car, lane, target)
        assert round(control[0].item(), 3) in traffic.THROTTLES
        assert round(control[1].item(), 3) in traffic.STEERS
        car = traffic.step(car, control)
        furthest = max(furthest, car[0].item() * (1 if lane > 0 else -1))
        if t >= 50:
            assert abs(car[0].item() - lane) < 0.4
    assert furthest < 4.0
    assert car[3].item() == pytest.approx(speed, abs=1.2)
