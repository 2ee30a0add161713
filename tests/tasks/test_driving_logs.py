"""The import of a robot's logs as trials of the task driving."""

from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.driving.data import read_sessions
from fedapps.tasks.driving.logs import DrivingImport
from fedapps.tasks.driving.options import Road
from fedapps.tasks.logs.folder import import_logs
from fedapps.tasks.logs.readers import open_log
from robot_logs import Messages, Recorded, import_one, write_bag

MAPPING = """[settings]
node = 3
lane-line = 2.0
[signals.robot]
topic = "/odom"
frame = "odom"
time = { column = "header.stamp", unit = "s" }
x = { column = "pose.pose.position.x", unit = "m" }
y = { column = "pose.pose.position.y", unit = "m" }
vx = { column = "twist.twist.linear.x", unit = "m/s" }
vy = { column = "twist.twist.linear.y", unit = "m/s" }
heading = { column = "pose.pose.orientation", unit = "quaternion" }
velocity = "body"
[signals.human]
topic = "/people"
frame = "odom"
time = { column = "header.stamp", unit = "s" }
each = "people"
id = "name"
x = { column = "position.x", unit = "m" }
y = { column = "position.y", unit = "m" }
"""


def drive(turn: float = 0.0, skip: tuple[float, float] = (0.0, 0.0), start: float = 0.0) -> list[Recorded]:
    """The robot drives along the road at 10 m/s on its right, and tracks a faster car on its left, one on its own side,
    and one for a second only; all turned by an angle, from a time on.
    """
    ros, messages = Messages(), []
    c, s = np.cos(turn), np.sin(turn)

    def placed(x: float, y: float) -> tuple[float, float]:
        return c * x - s * y, s * x + c * y

    for tick in range(81):
        time = tick * 0.05
        now = start + time
        messages.append(("/odom", now, ros.odometry(now, *placed(10 * time, 0.0), speed=10.0, heading=turn)))
        if tick % 2 == 0 and not skip[0] < time < skip[1]:
            cars = {"left": placed(12 * time, 4.0), "same": placed(12 * time, 1.0)}
            if time < 1:
                cars["short"] = placed(10 * time, 4.0)
            messages.append(("/people", now, ros.people(now, cars)))
    return messages


def imported(tmp_path: Path, messages: list[Recorded], mapping: str = MAPPING) -> str:
    return import_one(DrivingImport, mapping, tmp_path, write_bag(tmp_path / "a.mcap", messages))


@pytest.mark.parametrize("degrees", [0, 90, -30])
def test_a_car_that_is_met_for_long_enough_is_a_trial_along_the_road(tmp_path: Path, degrees: int) -> None:
    mapping = MAPPING.replace("node = 3", f"node = 3\nalong = {degrees}.0")
    line = imported(tmp_path, drive(np.deg2rad(degrees)), mapping)
    assert "1 trials with 41 rows; left out 1 shorter than 25 steps, 1 on the robot's side of the lane line" in line
    recording = read_sessions(tmp_path / "out", Road(lane_line=2.0))
    assert recording.dynamics == "point"
    ((block, (session,)),) = recording.blocks.items()
    assert block == 3
    seconds = np.arange(41) * 0.1
    expected = np.zeros((41, 2, 4))  # x across and y along the road, from the line between the lanes
    expected[:, 0] = np.stack([np.full(41, -2.0), 10 * seconds, np.zeros(41), np.full(41, 10.0)], axis=1)
    expected[:, 1] = np.stack([np.full(41, 2.0), 12 * seconds, np.zeros(41), np.full(41, 12.0)], axis=1)
    np.testing.assert_allclose(session.states, expected, atol=1e-6)
    np.testing.assert_allclose(session.controls, 0, atol=1e-6)


def test_a_gap_of_the_tracker_gives_trials_that_do_not_bridge_it(tmp_path: Path) -> None:
    mapping = MAPPING.replace("node = 3", "node = 3\nshortest = 5")
    assert "3 trials with 34 rows" in imported(tmp_path, drive(skip=(0.85, 2.45)), mapping)
    (sessions,) = read_sessions(tmp_path / "out", Road(lane_line=2.0)).blocks.values()
    assert [len(session.states) for session in sessions] == [9, 9, 16]  # the second is the car of a second


def test_the_last_fifth_of_the_trials_of_all_logs_is_the_test(tmp_path: Path) -> None:
    (tmp_path / "mapping.toml").write_text(MAPPING)
    paths = {hour: write_bag(tmp_path / f"{hour}.mcap", drive(start=3600.0 * hour)) for hour in (3, 0, 4, 1, 2)}
    assert all(done for done, _ in import_logs(DrivingImport, [*paths.values()], tmp_path / "mapping.toml", tmp_path))
    (sessions,) = read_sessions(tmp_path, Road(lane_line=2.0)).blocks.values()
    numbers = [int(open_log(paths[hour]).digest()[-8:], 16) * 1000 for hour in range(5)]
    assert [session.number for session in sessions] == numbers
    assert [session.split for session in sessions] == ["train"] * 4 + ["test"]


def test_a_car_that_is_seen_once_is_shorter_than_a_trial(tmp_path: Path) -> None:
    ros = Messages()
    messages = sorted([*drive(), ("/people", 2.01, ros.people(2.0, {"once": (22.0, 4.0)}))], key=lambda m: m[1])
    line = imported(tmp_path, messages)
    assert "1 trials with 41 rows; left out 2 shorter than 25 steps, 1 on the robot's side of the lane line" in line


def test_a_car_that_drives_away_is_left_out_beyond_a_distance(tmp_path: Path) -> None:
    mapping = MAPPING.replace("node = 3", "node = 3\nwithin = 7.5")
    assert "1 trials with 32 rows" in imported(tmp_path, drive(), mapping)  # 4 m across, 6.2 m along after 3.1 s


def test_odometry_in_the_robots_own_axes_must_be_called_so(tmp_path: Path) -> None:
    line = imported(tmp_path, drive(np.pi / 2), MAPPING.replace('velocity = "body"', 'velocity = "frame"'))
    assert (
        "signals.robot beside 'left': by x, y it moves 40 m, by vx, vy 40 m, and they differ by 80 m; correct" in line
    )


def test_without_a_trial_the_settings_are_named(tmp_path: Path) -> None:
    line = imported(tmp_path, drive(), MAPPING.replace("2.0", "-4.0"))
    assert line.startswith("refused: ")
    assert (
        "no trial is left (1 shorter than 25 steps, 2 on the robot's side of the lane line); correct settings" in line
    )
