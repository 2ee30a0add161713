"""The import of a robot's logs as rows of the task lqr."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.lqr.logs import LqrImport, nearest_weight
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.lqr.world import A, B, optimal_gain, read_rollouts, robot_files, trajectories
from robot_logs import ROS1, ROS2, Messages, import_one, write_bag, write_lerobot

MAPPING = """[settings]
step = 0.5
gap = 1.0
node = "7"
goal = 10.0
control-weight = 3.0
test-share = 0.25
[signals.robot]
topic = "/odom"
time = { column = "header.stamp", unit = "s" }
x = { column = "pose.pose.position.x", unit = "m" }
vx = { column = "twist.twist.linear.x", unit = "m/s" }
[signals.command]
topic = "/cmd_vel"
speed = { column = "linear.x", unit = "m/s" }
"""


imported = partial(import_one, LqrImport, MAPPING)


@pytest.mark.parametrize("name", ["a.bag", "a.mcap", "a"])
def test_rows_of_a_bag_are_per_step_and_relative_to_the_goal(tmp_path: Path, name: str) -> None:
    ros = Messages(ROS1 if name.endswith(".bag") else ROS2)
    messages = []
    for tick in range(13):  # 4 Hz; the speed grows by 0.5 m/s in a step of 0.5 s, so by 1 m/s2
        time = 100 + tick * 0.25
        messages.append(("/odom", time, ros.odometry(time, 0.5 * (tick * 0.25) ** 2, speed=tick * 0.25)))
        if tick % 2 == 0:
            messages.append(("/cmd_vel", time, ros.twist(tick * 0.25 + 0.5)))
    assert imported(tmp_path, write_bag(tmp_path / name, messages)) == f"{tmp_path / name}: 1 sessions with 6 rows"
    rollouts = read_rollouts(robot_files(tmp_path / "out"))
    assert rollouts.key == "robot-7"
    rows = np.concatenate([rollouts.tables["train"], rollouts.tables["test"]])
    assert {split: len(table) for split, table in rollouts.tables.items()} == {"train": 5, "test": 1}
    seconds = np.arange(7) * 0.5
    position, velocity = 0.5 * seconds**2 - 10, seconds * 0.5  # velocity in m per step
    np.testing.assert_allclose(rows[:, 0], position[:-1], atol=1e-6)
    np.testing.assert_allclose(rows[:, 1], velocity[:-1], atol=1e-6)
    np.testing.assert_allclose(rows[:, 2], 0.25, atol=1e-6)  # 0.5 m/s more is commanded, per step of 0.5 s
    np.testing.assert_allclose(rows[:, 3:5], np.stack([position[1:], velocity[1:]], axis=1), atol=1e-6)
    assert set(rows[:, 5]) == {3.0}
    assert LqrTask().load_own(tmp_path / "out").count("train") == 5


def test_an_acceleration_is_the_change_of_velocity_in_a_step_and_rows_do_not_cross_episodes(tmp_path: Path) -> None:
    state = np.array([[0.0], [1.0], [3.0], [6.0]])
    episodes = [{"state": state + offset, "action": np.full((4, 1), 4.0)} for offset in (0, 100)]
    log = write_lerobot(tmp_path / "data", episodes, fps=2)
    mapping = """[settings]
step = 0.5
gap = 1.0
control-weight = 1.0
test-share = 0.0
[signals.robot]
topic = "frames"
x = { column = "observation.state[0]", unit = "m" }
[signals.command]
topic = "frames"
acceleration = { column = "action[0]", unit = "m/s2" }
"""
    assert imported(tmp_path, log, mapping).endswith("2 sessions with 6 rows")
    rows = read_rollouts(robot_files(tmp_path / "out")).tables["train"]
    np.testing.assert_allclose(rows[:3, 0], [0, 1, 3], atol=1e-5)
    np.testing.assert_allclose(rows[3:, 3], [101, 103, 106], atol=1e-4)
    np.testing.assert_allclose(rows[:, 2], 1.0, atol=1e-6)  # 4 m/s2 for 0.5 s is 2 m/s, which is 1 m per step


@pytest.mark.parametrize("weight", [0.5, 20.0])
def test_the_weight_whose_optimal_gain_explains_the_commands_is_found(weight: float) -> None:
    rows = trajectories(weight, 10, 20, start_range=5.0, noise_variance=1e-4, rng=np.random.default_rng(0))
    assert nearest_weight(rows.reshape(-1, 5)) == pytest.approx(weight, rel=0.1)


def test_without_a_weight_the_line_says_which_was_taken(tmp_path: Path) -> None:
    state, gain = np.array([4.0, 0.0]), np.array(optimal_gain(5.0))
    lines = ["t,y,a"]
    for time in range(30):
        control = -gain @ state
        lines.append(f"{time},{state[0]},{control}")
        state = A @ state + B[:, 0] * control
    (tmp_path / "a.csv").write_text("\n".join(lines))
    mapping = """[settings]
step = 1.0
gap = 1.0
[signals.robot]
topic = "a"
time = { column = "t", unit = "s" }
x = { column = "y", unit = "m" }
[signals.command]
topic = "a"
time = { column = "t", unit = "s" }
acceleration = { column = "a", unit = "m/s2" }
"""
    assert "29 rows; control_weight " in imported(tmp_path, tmp_path / "a.csv", mapping)
    (tmp_path / "b.csv").write_text("t,y,a\n" + "".join(f"{time},{time},1\n" for time in range(9)))
    line = imported(tmp_path, tmp_path / "b.csv", mapping.replace('"a"\ntime', '"b"\ntime'))
    assert re.search(r"refused: .*control-weight = 0: no R explains the commands of .*b\.csv; state it", line)


def test_a_command_must_be_one_of_speed_and_acceleration(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"signals\.command: name either speed or acceleration"):
        imported(tmp_path, tmp_path, "\n".join(MAPPING.splitlines()[:-1]))


def test_signals_that_share_no_time_are_refused(tmp_path: Path) -> None:
    ros = Messages()
    log = write_bag(tmp_path / "a.mcap", [("/odom", 1, ros.odometry(500, 0)), ("/cmd_vel", 2, ros.twist(1))])
    assert imported(tmp_path, log).startswith(f"refused: {log}: no session of 3 steps of 0.5 s; raise settings.gap")
