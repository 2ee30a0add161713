"""The synthetic driver and the starts of its sessions."""

import pytest
import torch
from fedapps.sim.traffic import dynamics, scenarios
from fedapps.sim.traffic.drivers import Driver, lane_swap_drivers
from hypothesis import given, settings
from hypothesis import strategies as st


def car(y, speed=20.0, x=0.0):
    return torch.tensor([x, float(y), 0.0, speed])


@pytest.mark.parametrize(
    ("style", "gamma", "lead", "fast"),
    [
        ("threshold", 1.0, -9.0, True),
        ("threshold", 1.0, -11.0, False),
        ("threshold", 0.5, -6.0, False),
        ("threshold", 0.0, 0.0, True),
        ("threshold", 0.0, -1.0, False),
        ("threshold", -0.5, 4.0, False),
        ("threshold", -0.5, 6.0, True),
        ("threshold", -1.0, 9.0, False),
        ("literal", 1.0, 1.0, True),
        ("literal", 1.0, -1.0, False),
        ("literal", -1.0, 1.0, False),
        ("literal", -1.0, -1.0, True),
        ("literal", 0.0, -50.0, True),
    ],
)
def test_who_wants_to_be_fast(style, gamma, lead, fast):
    assert Driver("d", gamma, style).wants_fast(car(lead), car(0)).item() is fast


def test_relative_speed_counts_like_a_second_of_lead():
    driver = Driver("d", 0.0)
    assert driver.wants_fast(car(-2, speed=22.5), car(0, speed=20.0)).item()
    assert not driver.wants_fast(car(-3, speed=22.5), car(0, speed=20.0)).item()


@pytest.mark.parametrize(("gap", "fast"), [(14.9, False), (15.1, True), (-14.9, False), (-15.1, True)])
def test_the_gray_car_must_be_clear(gap, fast):
    assert Driver("d", 1.0).wants_fast(car(0), car(0), car(gap)).item() is fast


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(15, 25), st.floats(0.01, 1))
def test_literal_taste_is_a_matter_of_sign(lead, speed, size):
    human, robot = car(lead, speed), car(0)
    for sign in (-1, 1):
        graded = Driver("a", sign * size, "literal").wants_fast(human, robot)
        assert graded == Driver("b", float(sign), "literal").wants_fast(human, robot)


@settings(deadline=None)
@given(st.floats(-30, 30), st.floats(15, 25), st.floats(-1, 1), st.floats(-1, 1))
def test_the_bolder_driver_is_fast_wherever_the_meeker_is(lead, speed, one, other):
    meek, bold = sorted((one, other))
    human, robot = car(lead, speed), car(0)
    assert Driver("a", bold).wants_fast(human, robot) >= Driver("b", meek).wants_fast(human, robot)


@pytest.mark.parametrize(("speed", "throttle"), [(20.0, 1.5), (23.0, 0.0), (24.0, -1.5)])
def test_speed_control_by_hand(speed, throttle):
    # gamma = 1, abreast: the target is 23; errors 3, 0, -1 times (1.5 + 0.1 + 0.01) cut to the allowed set
    driver, human = Driver("d", 1.0), car(0, speed)
    control, memory = driver.control(human, car(0), None, driver.memory(human), torch.tensor(0.0), 0.0)
    torch.testing.assert_close(control, torch.tensor([throttle, 0.0]))
    torch.testing.assert_close(memory, torch.tensor([0.1 * (23 - speed), 23 - speed]))


def test_noise_falls_on_the_reading_of_the_own_speed():
    driver, human = Driver("d", 1.0, speed_noise=0.5), car(0, 23.0)
    _, memory = driver.control(human, car(0), None, driver.memory(human), torch.tensor(2.0), 0.0)
    assert memory[1].item() == pytest.approx(-1.0)


def test_the_driver_returns_to_its_lane():
    driver, human = Driver("d", 1.0), torch.tensor([4.5, 0.0, 0.0, 20.0])
    memory = driver.memory(human)
    for _ in range(60):
        control, memory = driver.control(human, car(0), None, memory, torch.tensor(0.0), 3.5)
        human = dynamics.step(human, control)
    assert human[0].item() == pytest.approx(3.5, abs=0.3)


def test_grades():
    assert [driver.gamma for driver in lane_swap_drivers(5)] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert [round(driver.gamma, 3) for driver in lane_swap_drivers()] == [
        -1,
        -0.667,
        -0.333,
        0,
        0.333,
        0.667,
        1,
    ]
    assert [driver.gamma for driver in lane_swap_drivers(1, "literal")] == [0.0]
    assert len({driver.name for driver in lane_swap_drivers()}) == 7


def test_impossible_drivers_are_refused():
    with pytest.raises(ValueError, match="style = 'bold'"):
        Driver("d", 0.0, "bold")
    with pytest.raises(ValueError, match=r"gamma = 1\.5"):
        Driver("d", 1.5)
    with pytest.raises(ValueError, match="count = 0"):
        lane_swap_drivers(0)


@pytest.mark.parametrize(
    ("scenario", "count", "held_out"),
    [(scenarios.LANE_SWAP, 50, 10), (scenarios.THREE_CARS, 54, 9), (scenarios.LANE_SWAP, 4, 1)],
)
def test_starts(scenario, count, held_out):
    starts = scenarios.initial_states(scenario, count, seed=3)
    assert starts.states.shape == (count, scenario.cars, 4)
    assert starts.states.dtype == torch.float32
    assert starts.held_out.tolist() == [False] * (count - held_out) + [True] * held_out
    offset = (starts.states[:, 1, 1] - starts.states[:, 0, 1]).abs()
    assert (offset <= scenario.max_offset).all()
    assert (offset < scenario.gap_enough).all()
    assert (starts.states[:, 0, 0] == scenario.robot_lane).all()
    assert (starts.states[:, 1, 0] == scenario.human_lane).all()
    assert (starts.states[..., 2] == 0).all()
    assert ((starts.states[:, :2, 3] >= 17) & (starts.states[:, :2, 3] <= 23)).all()


def test_held_out_lane_swaps_start_abreast():
    starts = scenarios.initial_states(scenarios.LANE_SWAP, 50, seed=0)
    hard = starts[starts.held_out].states
    assert ((hard[:, 1, 1] - hard[:, 0, 1]).abs() <= 2.0).all()
    assert ((hard[:, 1, 3] - hard[:, 0, 3]).abs() <= 1.0).all()


def test_a_start_depends_on_seed_and_session_alone():
    many, few = (scenarios.initial_states(scenarios.THREE_CARS, count, seed=0) for count in (54, 20))
    assert torch.equal(many.states[:20], few.states)
    assert many[torch.tensor([7])].session.tolist() == [7]
    assert not torch.equal(many.states, scenarios.initial_states(scenarios.THREE_CARS, 54, seed=1).states)


def test_no_starts():
    starts = scenarios.initial_states(scenarios.LANE_SWAP, 0, seed=0)
    assert starts.states.shape == (0, 2, 4)
    assert len(starts) == 0
    with pytest.raises(ValueError, match="count = -1"):
        scenarios.initial_states(scenarios.LANE_SWAP, -1, seed=0)
