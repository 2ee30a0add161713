"""Closed-loop sessions, their outcomes and their files."""

import csv
import json
import lzma
from dataclasses import replace

import pytest
import torch
from fedapps.tasks.driving.closed_loop import session_metrics
from fedapps.tasks.driving.world import sessions as world_sessions
from fedapps.tasks.driving.world import traffic
from fedapps.tasks.driving.world.sessions import Sessions, simulate
from fedapps.tasks.driving.world.traffic import LANE_SWAP, THREE_CARS, Driver, initial_states, lane_swap_drivers
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic_policies import aim_for

BOLD, MEEK = Driver("bold", 1.0), Driver("meek", -1.0)


def run(scenario=LANE_SWAP, driver=BOLD, count=12, policy=None, seed=0, tau=3, starts=None):
    starts = initial_states(scenario, count, seed=0) if starts is None else starts
    return simulate(scenario, driver, starts, policy or aim_for(20.0, tau), seed, tau)


@pytest.mark.parametrize("scenario", [LANE_SWAP, THREE_CARS], ids=lambda scenario: scenario.name)
def test_a_row_follows_from_the_row_before_and_its_own_controls(scenario):
    sessions = run(scenario)
    assert sessions.controls[:, 0, :2].abs().sum() == 0
    following = traffic.step(sessions.states[:, :-1], sessions.controls[:, 1:])
    going = sessions.valid[:, 1:]
    torch.testing.assert_close(following[going], sessions.states[:, 1:][going])
    chosen = sessions.controls[:, :, :2]
    assert torch.equal(traffic.quantise(chosen), chosen)


def test_what_comes_after_the_end_repeats_the_last_state():
    sessions = run()
    assert sessions.length.min() < sessions.length.max() == sessions.states.shape[1]
    for i, length in enumerate(sessions.length.tolist()):
        assert (sessions.states[i, length:] == sessions.states[i, length - 1]).all()
        assert sessions.controls[i, length:].abs().sum() == 0
        assert sessions.cost[i, length:].abs().sum() == 0


def test_both_cars_swap_lanes_once_the_gap_suffices():
    sessions = run()
    rows = torch.arange(len(sessions))
    end = sessions.states[rows, sessions.length - 1]
    torch.testing.assert_close(end[:, :2, 0], torch.tensor([[3.5, 0.0]]).expand(12, 2), atol=0.35, rtol=0)
    gap = (sessions.states[:, :, 0, 1] - sessions.states[:, :, 1, 1]).abs()
    start = sessions.lane_change_start
    assert (gap[rows, start] >= 12).all()
    assert (gap[rows, start - 1] < 12).all()
    assert (sessions.states[rows, start, 0, 0] == 0).all()  # this robot stays in its lane in phase 1


def test_three_cars_never_change_lanes_and_the_gray_one_keeps_its_speed():
    sessions = run(THREE_CARS)
    assert (sessions.length == THREE_CARS.max_steps + 1).all()
    torch.testing.assert_close(sessions.states[..., 0, 0], torch.zeros(12, 61))
    gray = sessions.states[:, :, 2]
    torch.testing.assert_close(gray[:, -1, 3], gray[:, 0, 3])
    torch.testing.assert_close(gray[:, -1, 1], gray[:, 0, 1] + 6.0 * gray[:, 0, 3])
    assert (sessions.cost >= THREE_CARS.cost_floor).all()


def test_sessions_do_not_depend_on_what_else_is_simulated():
    starts = initial_states(LANE_SWAP, 20, seed=0)
    whole = run(starts=starts)
    for chosen in (torch.tensor([3]), torch.tensor([17, 5, 9])):
        part = run(starts=starts[chosen])
        assert torch.equal(part.length, whole.length[chosen])
        used = part.states.shape[1]
        assert torch.equal(part.states, whole.states[chosen, :used])


def test_the_drivers_noise_is_the_same_for_every_robot_but_not_for_every_seed_or_driver():
    def first_throttles(**changes):
        hesitant = replace(BOLD, v_high=20.0, v_low=20.0, speed_noise=2.0)
        sessions = run(driver=changes.pop("driver", hesitant), **changes)
        return sessions.controls[:, 1:11, 1, 0]

    same = first_throttles()
    assert torch.equal(same, first_throttles(policy=aim_for(17.0)))
    assert not torch.equal(same, first_throttles(seed=1))
    renamed = replace(BOLD, name="other", v_high=20.0, v_low=20.0, speed_noise=2.0)
    assert not torch.equal(same, first_throttles(driver=renamed))


def test_the_policy_is_asked_every_tau_steps_and_sees_everything_so_far():
    seen = []

    def policy(observation):
        seen.append((observation.states.shape, observation.controls.shape))
        return torch.tensor([[9.0, 0.0], [-9.0, 0.0], [0.1, 0.0], [9.0, 0.0]]).expand(2, 4, 2)

    sessions = run(replace(LANE_SWAP, max_steps=6, gap_enough=1e9), count=2, policy=policy, tau=4)
    assert seen == [((2, 1, 2, 4), (2, 1, 2, 2)), ((2, 5, 2, 4), (2, 5, 2, 2))]
    throttles = sessions.controls[0, :, 0, 0].tolist()
    assert throttles == [0.0, 1.5, -1.5, 0.0, 1.5, 1.5, -1.5]  # snapped, and asked again after four
    assert (sessions.lane_change_start == -1).all()
    assert (sessions.length == 7).all()


def test_no_sessions():
    sessions = run(count=0)
    assert sessions.states.shape == (0, 1, 2, 4)
    assert session_metrics("loop", [sessions])["loop.cost"] == []


def test_drivers_differ_visibly_before_the_same_robot():
    ahead = []
    for driver in lane_swap_drivers(3):
        sessions = run(driver=driver, count=20)
        ahead.append((sessions.states[:, -1, 1, 1] > sessions.states[:, -1, 0, 1]).float().mean().item())
    assert ahead[0] < 0.2 < ahead[1] < 0.8 < ahead[2]


def by_hand(y_human, start, scenario=LANE_SWAP):
    """One session: the robot stands at the origin, the human is at ``y_human`` in its lane, at 10 m/s."""
    rows = len(y_human)
    states = torch.zeros(1, rows, scenario.cars, 4)
    states[0, :, 1] = torch.tensor([[3.5, y, 0.0, 10.0] for y in y_human])
    stage = traffic.stage_cost(states[:, :, 0], states[:, :, 1])
    one = torch.ones(1, dtype=torch.int64)
    return Sessions(
        scenario, BOLD, 0 * one, one > 0, states, torch.zeros(1, rows, 2, 2), stage, rows * one, start * one
    )


def outcomes(sessions):
    """The cost, the seconds, whether the lane change started, the metres, and whether the robot collided."""
    metrics = session_metrics("loop", [sessions])
    names = ("cost", "time_to_lane_change", "started", "distance_at_start", "collided")
    return [metrics[f"loop.{name}"][0] for name in names]


def test_outcomes_by_hand():
    costs = (5000 / 3.5, -3 * -12 * -10 + 5000 / 12.5, -3 * -24 * -10 + 5000 / (3.5**2 + 24**2) ** 0.5)
    for start, scenario, rows, started in (
        (1, LANE_SWAP, 2, 1),
        (-1, LANE_SWAP, 3, 0),
        (1, replace(LANE_SWAP, robot_swaps=False), 3, 1),  # a robot that keeps planning pays to the end
    ):
        seconds, distance = (0.1, 12.5) if started else (0.2, (3.5**2 + 24**2) ** 0.5)  # 3.5, 12, 12.5
        expected = [sum(costs[:rows]) / rows, seconds, started, distance, 0]
        assert outcomes(by_hand([0.0, 12.0, 24.0], start, scenario)) == pytest.approx(expected)


def test_overlapping_cars_have_collided():
    sessions = by_hand([0.0, 5.0], start=-1)
    sessions.states[0, 1, 1, :2] = torch.tensor([1.9, 3.9])
    assert outcomes(sessions)[-1] == 1


def test_files_hold_the_accelerations_and_are_named_after_the_block(tmp_path):
    """All other columns come back as they were (``test_driving_data.py``)."""
    sessions = run(driver=MEEK, count=3)
    path = world_sessions.write_sessions(tmp_path / "world", 4, sessions)
    assert path.name == "driver-04.csv.xz"
    with lzma.open(path, "rt") as file:
        second = [row for row in csv.DictReader(file) if row["trial"] == "4001"]
    assert {(row["trial_name"], row["session"], row["split"]) for row in second} == {("lane-swap-04-001", "1", "train")}
    for car, letter in enumerate("rh"):
        # along a straight road the acceleration that led to a row is its throttle less friction
        throttle = sessions.controls[1, 7, car, 0].item()
        assert float(second[7][f"ax{letter}"]) == pytest.approx(throttle - 0.06, abs=0.02)


def test_worlds_come_back(tmp_path):
    assert world_sessions.read_world(tmp_path) is None
    world = world_sessions.World(THREE_CARS, 3, dict(enumerate(lane_swap_drivers(5, "literal"))))
    world_sessions.write_world(tmp_path, world)
    assert world_sessions.read_world(tmp_path) == world


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "nonsense",
        json.dumps({"scenario": "moon", "seed": 0, "blocks": {}}),
        json.dumps({"scenario": "lane-swap", "seed": 0, "blocks": {"0": {"name": "d", "gamma": 7}}}),
        json.dumps({"scenario": "lane-swap", "seed": 0, "blocks": {"0": {"taste": 7}}}),
    ],
)
def test_malformed_worlds_are_named(tmp_path, content):
    (tmp_path / world_sessions.WORLD_FILE).write_text(content)
    with pytest.raises(ValueError, match=r"world\.json: expected a scenario"):
        world_sessions.read_world(tmp_path)


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
        human = traffic.step(human, control)
    assert human[0].item() == pytest.approx(3.5, abs=0.3)


def test_grades():
    assert [driver.gamma for driver in lane_swap_drivers(5)] == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert [round(driver.gamma, 3) for driver in lane_swap_drivers()] == [-1, -0.667, -0.333, 0, 0.333, 0.667, 1]
    assert [driver.gamma for driver in lane_swap_drivers(1, "literal")] == [0.0]
    assert len({driver.name for driver in lane_swap_drivers()}) == 7


def test_impossible_drivers_are_refused():
    with pytest.raises(ValueError, match="style = 'bold'"):
        Driver("d", 0.0, "bold")
    with pytest.raises(ValueError, match=r"gamma = 1\.5"):
        Driver("d", 1.5)


@pytest.mark.parametrize(
    ("scenario", "count", "held_out"),
    [(traffic.LANE_SWAP, 50, 10), (traffic.THREE_CARS, 54, 9), (traffic.LANE_SWAP, 4, 1)],
)
def test_starts(scenario, count, held_out):
    starts = traffic.initial_states(scenario, count, seed=3)
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
    starts = traffic.initial_states(traffic.LANE_SWAP, 50, seed=0)
    hard = starts[starts.held_out].states
    assert ((hard[:, 1, 1] - hard[:, 0, 1]).abs() <= 2.0).all()
    assert ((hard[:, 1, 3] - hard[:, 0, 3]).abs() <= 1.0).all()


def test_a_start_depends_on_seed_and_session_alone():
    many, few = (traffic.initial_states(traffic.THREE_CARS, count, seed=0) for count in (54, 20))
    assert torch.equal(many.states[:20], few.states)
    assert many[torch.tensor([7])].session.tolist() == [7]
    assert not torch.equal(many.states, traffic.initial_states(traffic.THREE_CARS, 54, seed=1).states)
