"""The import of a robot's logs as rated scenes of the task social."""

from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.social.logs import SocialImport
from fedapps.tasks.social.scenes import read_participant, split_scenes
from robot_logs import Messages, Recorded, import_one, write_bag

MAPPING = """[settings]
node = "q"
room = "-2,-2; 8,-2; 8,8; -2,8"
[signals.robot]
topic = "/odom"
frame = "odom"
x = { column = "pose.pose.position.x", unit = "m" }
y = { column = "pose.pose.position.y", unit = "m" }
heading = { column = "pose.pose.orientation", unit = "quaternion" }
[signals.people]
topic = "/people"
frame = "odom"
each = "people"
id = "name"
x = { column = "position.x", unit = "m" }
y = { column = "position.y", unit = "m" }
[signals.rating]
topic = "/rating"
score = { column = "data" }
"""


def imported(tmp_path: Path, messages: list[Recorded], mapping: str = MAPPING, log: str = "a") -> str:
    return import_one(SocialImport, mapping, tmp_path, write_bag(tmp_path / f"{log}.mcap", messages))


def test_a_rating_gives_the_scene_around_the_robot(tmp_path: Path) -> None:
    ros, messages = Messages(), []
    for tick in range(11):  # the robot faces +x; a person comes towards it, 2 m ahead and 1 m to its left at 0.5 s
        time = tick * 0.1
        messages.append(("/odom", time, ros.odometry(time, 1.0 + time, 1.0)))
        messages.append(("/people", time, ros.people(time, {"a": (4.0 - time, 2.0)})))
    messages += [("/rating", 0.5, ros.number(70.0)), ("/rating", 9.0, ros.number(10.0))]
    assert "1 scenes; left out 1 ratings without a pose" in imported(tmp_path, sorted(messages, key=lambda m: m[1]))
    (scene,) = read_participant(tmp_path / "out", "q")
    assert scene.score == 70
    ((x, y, orientation),) = scene.humans
    np.testing.assert_allclose((x, y), (-1.0, 2.0), atol=1e-6)  # the robot faces +y, so left is -x
    assert orientation == pytest.approx(0.0, abs=1e-6)  # who faces the robot has the direction (sin 0, -cos 0)
    # the robot is at (1.5, 1): the corner (-2, -2) lies 3.5 m behind and 3 m to the right
    np.testing.assert_allclose(scene.room[0], (3.0, -3.5), atol=1e-6)


def test_a_scene_stays_in_its_split_when_another_log_follows(tmp_path: Path) -> None:
    ros, splits = Messages(), []
    for name, ratings in (("a", 60), ("b", 40)):
        messages: list[Recorded] = []
        for tick in range(ratings):
            time = tick * 0.1
            messages.append(("/odom", time, ros.odometry(time, 1.0, 1.0)))
            messages.append(("/people", time, ros.people(time, {"p": (2.0, 2.0)})))
            messages.append(("/rating", time, ros.number(float(tick))))
        assert f"{ratings} scenes" in imported(tmp_path, messages, log=name)
        parts = split_scenes(read_participant(tmp_path / "out", "q"), "q", seed=0)
        splits.append({split: {scene.identifier for scene in scenes} for split, scenes in parts.items()})
    first, both = splits
    assert all(first[split] < both[split] for split in both)
    assert len(both["train"]) == pytest.approx(70, abs=15)


@pytest.mark.parametrize("room", ["", "0,0; 1,1", "a,b; c,d; e,f", "0,0; 1,0; 1"])
def test_a_room_needs_three_corners(tmp_path: Path, room: str) -> None:
    with pytest.raises(ValueError, match=r"settings\.room = .*: must be 3 corners or more, such as 0,0; 6,0; 6,4; 0,4"):
        imported(tmp_path, [], MAPPING.replace("-2,-2; 8,-2; 8,8; -2,8", room))


def test_a_rating_beyond_the_scale_names_the_log_and_the_time(tmp_path: Path) -> None:
    ros = Messages()
    messages: list[Recorded] = [("/odom", time, ros.odometry(time, 1.0, 1.0)) for time in (0.0, 0.4)]
    messages += [("/people", 0.1, ros.people(0.1, {"a": (2.0, 2.0)})), ("/rating", 0.2, ros.number(700.0))]
    line = imported(tmp_path, sorted(messages, key=lambda m: m[1]))
    assert line.startswith(
        f"refused: {tmp_path / 'a.mcap'}, rating at 0.200 s: score = 700.0; expected a number from 0"
    )


def test_who_stands_faces_as_before(tmp_path: Path) -> None:
    ros, messages = Messages(), []
    for tick in range(41):  # the person walks towards -y for 2 s, then stands
        time = tick * 0.1
        messages.append(("/odom", time, ros.odometry(time, 1.0, 1.0)))
        messages.append(("/people", time, ros.people(time, {"a": (4.0, 5.0 - min(time, 2.0))})))
    messages += [("/rating", time, ros.number(70.0)) for time in (1.0, 3.5)]
    imported(tmp_path, sorted(messages, key=lambda m: m[1]))
    walks, stands = (scene.humans[0][2] for scene in read_participant(tmp_path / "out", "q"))
    assert walks == pytest.approx(stands, abs=1e-6)
    assert abs(stands) == pytest.approx(0.5, abs=1e-6)  # of 180 degrees


def test_who_comes_back_elsewhere_did_not_walk_there(tmp_path: Path) -> None:
    ros, messages = Messages(), []
    for tick in range(41):  # the person walks towards +x, is not seen for 2 s, and goes on 4 m to the right
        time = tick * 0.1
        messages.append(("/odom", time, ros.odometry(time, 1.0, 1.0)))
        if not 1.0 < time < 3.0:
            messages.append(("/people", time, ros.people(time, {"a": (2.0 + time, 5.0 - 4.0 * (time > 2.0))})))
    messages += [("/rating", time, ros.number(70.0)) for time in (1.0, 3.0)]
    imported(tmp_path, sorted(messages, key=lambda m: m[1]))
    assert [abs(scene.humans[0][2]) for scene in read_participant(tmp_path / "out", "q")] == [1.0, 1.0]  # as the robot
