"""Reading of driving sessions, and the windows that are cut from them."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.driving import data
from fedapps.tasks.driving.closed_loop import as_sessions, encounters
from fedapps.tasks.driving.data import Session, cut, past, read_folder
from fedapps.tasks.driving.options import SETTINGS, Options, to_bicycle, to_motion
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.driving.world.sessions import simulate, write_sessions
from fedapps.tasks.driving.world.traffic import LANE_SWAP, THREE_CARS, initial_states, lane_swap_drivers
from hypothesis import given, settings
from hypothesis import strategies as st
from traffic_policies import aim_for

from fedapps.base.tables import read_table

HEADER = "trial,trial_name,block,step,t,xr,yr,vxr,vyr,axr,ayr,xh,yh,vxh,vyh,axh,ayh"


def recorded(
    folder: Path, trials: list[tuple[int, int]], human_y: float = -1.8, steps: int = 3, robot_y: float = -6.1
) -> Path:
    """A file in the format of the recorded trials: ``trials`` are (trial, block)."""
    lines = [HEADER]
    for trial, block in trials:
        for k in range(steps):
            robot = f"{-140 + 3 * k},{robot_y},30,0.5,4,0.25"
            human = f"{-138 + 2.8 * k},{human_y},28,-0.5,1,-0.75"
            lines.append(f"{trial},name-{trial},{block},{k},{k / 10:.1f},{robot},{human}")
    path = folder / "trials.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["trials.csv.gz", "copy.csv"])
def test_trials_that_are_there_twice_are_refused(tmp_path, name):
    path = recorded(tmp_path, [(0, 5)])
    (tmp_path / "._trials.csv").write_bytes(b"\0\5\x16\7")  # beside every file that macOS copies
    assert len(read_folder(tmp_path).blocks[5]) == 1
    content = path.read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError, match=r"keep one of them|trial 0 of block 5 is also in .*; keep one of the two"):
        read_folder(tmp_path)
    (tmp_path / name).unlink()
    recorded(tmp_path, [(0, 5), (1, 5), (0, 5)])
    with pytest.raises(
        DataError, match=r"line 8, column trial: trial 0 of block 5 begins for the second time \(first in"
    ):
        read_folder(tmp_path)


def test_velocities_in_another_unit_than_positions_are_refused(tmp_path):
    path = recorded(tmp_path, [(0, 5)], steps=20)
    read_folder(tmp_path)
    path.write_text(path.read_text().replace(",30,0.5,4,", ",108,1.8,4,"))  # km/h
    with pytest.raises(DataError, match=r"xr and yr the car drives 57 m, by vxr and vyr 205.2 m; expected metres, and"):
        read_folder(tmp_path)


def test_axes_are_swapped_and_lateral_positions_counted_from_the_lane_line(tmp_path):
    recorded(tmp_path, [(0, 5)])
    recording = read_folder(tmp_path)
    assert (recording.dynamics, recording.cars, list(recording.blocks)) == ("point", 2, [5])
    session = recording.blocks[5][0]
    np.testing.assert_allclose(session.states[1, 0], [-2.1, -137.0, 0.5, 30.0])  # -6.1 - (-4), then along the road
    np.testing.assert_allclose(session.states[1, 1], [2.2, -135.2, -0.5, 28.0])
    np.testing.assert_allclose(session.controls[1], [[0.25, 4.0], [-0.75, 1.0]])


def test_sessions_are_mirrored_so_that_the_human_starts_on_the_same_side(tmp_path):
    recorded(tmp_path, [(0, 0)], human_y=-6.1, robot_y=-1.8)
    session = read_folder(tmp_path).blocks[0][0]
    np.testing.assert_allclose(session.states[0, 1], [2.1, -138.0, 0.5, 28.0])  # (-6.1 + 4) and vy, turned over
    np.testing.assert_allclose(session.controls[0, 1], [0.75, 1.0])


def test_the_line_between_the_lanes_is_an_option_that_the_cars_must_start_on_both_sides_of(tmp_path):
    recorded(tmp_path, [(0, 0)], human_y=2.2, robot_y=-2.1)
    with pytest.raises(
        DataError, match=r"start at y = -2.1 and 2.2 \(medians\).* 0.05; set driving.lane-line .*here -4"
    ):
        read_folder(tmp_path)
    session = read_folder(tmp_path, Options(lane_line=0.0).road).blocks[0][0]
    np.testing.assert_allclose(session.states[0, :, 0], [-2.1, 2.2])
    path = recorded(tmp_path, [(trial, 0) for trial in range(4)])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], *(line.replace(",-1.8,", ",-6.0,") for line in lines[4:7]), *lines[7:]]))
    with pytest.raises(
        DataError, match=r"line 5, column yr: in 1 of 4 trials .* same side .* y = -6.1 and -6; correct"
    ):
        read_folder(tmp_path)


def test_cars_that_drive_along_y_are_refused(tmp_path):
    path = recorded(tmp_path, [(0, 0)], steps=20)
    path.write_text(
        path.read_text().replace("xr,yr,vxr,vyr", "yr,xr,vyr,vxr").replace("xh,yh,vxh,vyh", "yh,xh,vyh,vxh")
    )
    with pytest.raises(DataError, match="drive faster along y than along x; expected x along the road"):
        read_folder(tmp_path)


@pytest.mark.parametrize(("trials", "tests"), [(1, 0), (2, 0), (3, 1), (9, 2), (12, 2), (15, 3)])
def test_the_last_fifth_of_a_block_is_the_test_split(tmp_path, trials, tests):
    recorded(tmp_path, [(trial, 1) for trial in range(trials)])
    splits = [session.split for session in read_folder(tmp_path).blocks[1]]
    assert splits == ["train"] * (trials - tests) + ["test"] * tests


def test_the_last_fifth_of_a_block_in_several_files_is_the_test_split(tmp_path):
    for trial in range(6):
        recorded(tmp_path, [(trial, 1)]).rename(tmp_path / f"{trial}.csv")
    sessions = read_folder(tmp_path).blocks[1]
    assert [(session.number, session.split) for session in sessions[4:]] == [(4, "train"), (5, "test")]


def test_each_file_is_read_once_for_all_nodes(tmp_path, monkeypatch):
    """Also with more files than a cache of single files would keep."""
    count, read = 70, []
    for block in range(count):
        recorded(tmp_path, [(0, block)]).rename(tmp_path / f"{block}.csv")
    monkeypatch.setattr(data, "read_table", lambda path, *columns: read.append(path) or read_table(path, *columns))
    task = DrivingTask(Options(scenario="trials"))
    for node in range(count):
        assert task.node_profile(tmp_path, node, count).key == f"driver-{node:02d}"
        assert [path.name for path in task.own_files(tmp_path, node, count)] == [f"{node}.csv"]
    assert len(read) == count
    recorded(tmp_path, [(0, 3), (1, 3)]).rename(tmp_path / "3.csv")
    os.utime(tmp_path / "3.csv", ns=(1, 1))
    assert len(read_folder(tmp_path).blocks[3]) == 2


def test_the_files_of_a_node_beside_one_of_demonstrations(tmp_path):
    recorded(tmp_path, [(0, 99)]).rename(tmp_path / "demonstrations.csv")
    path = recorded(tmp_path, [(0, 5)])
    assert DrivingTask(Options(scenario="trials")).own_files(tmp_path, 0, 1) == [path]


def test_a_file_named_like_a_split_needs_the_column(tmp_path):
    recorded(tmp_path, [(0, 1)]).rename(tmp_path / "train.csv")
    with pytest.raises(DataError, match=r"train\.csv: is named like a split, but has no column split, without which"):
        read_folder(tmp_path)


def test_a_line_says_what_was_taken_for_what(tmp_path):
    recorded(tmp_path, [(trial, block) for block in (1, 2, 99) for trial in range(5)])
    assert DrivingTask(Options(scenario="trials")).describe_data(tmp_path) == (
        "2 drivers (column block), sessions: 8 train, 0 validation, 2 test; m and m/s, x along the road; line between "
        "the lanes at y = -4 m; blocks left out: 99"
    )


def test_demonstrations_are_left_out(tmp_path):
    recorded(tmp_path, [(0, 0), (1, 99)])
    assert list(read_folder(tmp_path).blocks) == [0]
    recorded(tmp_path, [(0, 99)])
    with pytest.raises(DataError, match="only demonstration trials"):
        read_folder(tmp_path)
    assert list(read_folder(tmp_path, Options(demonstrations="").road).blocks) == [99]
    with pytest.raises(DataError, match=r"driving\.demonstrations = '7, x': 'x' is no block"):
        DrivingTask(Options(demonstrations="7, x"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-137,", "fast,", r"trials\.csv, line 3, column xr: 'fast'; expected a finite number"),
        ("vxr,", "speed,", r"line 1: no column vxr; found trial"),
        ("0,1,0.1,", "0,7,0.1,", r"line 3, columns step and t: 7 and 0\.1; expected step 1 of trial 0 at 0\.1 s"),
        ("0,1,0.1,", "0,1,0.9,", r"line 3, columns step and t: 1 and 0\.9; expected step 1 of trial 0 at 0\.1 s"),
    ],
)
def test_errors_name_the_place(tmp_path, old, new, message):
    path = recorded(tmp_path, [(0, 0)])
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=message):
        read_folder(tmp_path)


def test_a_folder_without_tables_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"expected files \*\.csv"):
        read_folder(tmp_path)


@pytest.mark.parametrize("scenario", [LANE_SWAP, THREE_CARS])
def test_simulated_sessions_come_back_as_they_were(tmp_path, scenario):
    starts = initial_states(scenario, 4, seed=3)
    driver = lane_swap_drivers(1)[0]
    sessions = simulate(scenario, driver, starts, aim_for(21.0), seed=3)
    write_sessions(tmp_path, 2, sessions)
    recording = read_folder(tmp_path)
    assert (recording.dynamics, recording.cars, list(recording.blocks)) == ("bicycle", scenario.cars, [2])
    for written, read in zip(as_sessions(sessions, "train"), recording.blocks[2], strict=True):
        np.testing.assert_allclose(read.states, written.states, atol=1e-4)
        np.testing.assert_allclose(read.controls[:, :2], written.controls[:, :2], atol=1e-6)
        assert read.number == written.number
    again = encounters(driver, 3, recording.blocks[2])
    torch.testing.assert_close(again.test.states, starts[starts.held_out].states, atol=1e-4, rtol=0)
    assert again.test.session.tolist() == [3]
    assert len(again.train) == 3


def test_a_world_and_recorded_trials_do_not_mix(tmp_path):
    recorded(tmp_path, [(0, 0)])
    starts = initial_states(LANE_SWAP, 2, seed=0)
    write_sessions(tmp_path, 0, simulate(LANE_SWAP, lane_swap_drivers(1)[0], starts, aim_for(20.0), seed=0))
    with pytest.raises(DataError, match="with and without throttle columns"):
        read_folder(tmp_path)


@given(st.floats(-5, 5), st.floats(-100, 100), st.floats(-1.5, 1.5), st.floats(0.5, 40.0))
def test_motions_and_bicycle_states_say_the_same(x, y, heading, speed):
    bicycle = torch.tensor([x, y, heading, speed], dtype=torch.float64)
    torch.testing.assert_close(to_bicycle(to_motion(bicycle)), bicycle)


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_the_recorded_trials():
    recording = read_folder(Path(os.environ["FEDAPPS_DATA"]) / "driving")
    counts = {block: len(sessions) for block, sessions in recording.blocks.items()}
    assert counts == {0: 12, 1: 14, 2: 14, 3: 15, 4: 11, 5: 11, 6: 9}
    starts = np.array([s.states[0, 1] for sessions in recording.blocks.values() for s in sessions])
    np.testing.assert_allclose(starts[:, 0], 2.13, atol=0.1)  # all humans start in the same lane ...
    np.testing.assert_allclose(starts[:, 1], -138.2, atol=0.5)  # ... and at the same place


SWAP_SETTING = SETTINGS["lane-swap"]
SMALL = Options(history=4, min_history=2, horizon=3, window_stride=2)


def counting_session(steps: int) -> Session:
    """A session whose numbers say where they come from."""
    time = np.arange(steps, dtype=float)
    states = np.zeros((steps, 2, 4))
    states[:, 0, 1] = 100 + 2.5 * time  # robot's y
    states[:, 1, 1] = 90 + 2 * time  # human's y
    states[:, 1, 0] = 3.5
    states[..., 3] = (25.0, 20.0)
    controls = np.zeros((steps, 2, 2))
    controls[:, 0, 0] = 1.5 * time
    controls[:, 1, 0] = -3.0 * time
    return Session(0, "train", states, controls)


def test_features_by_hand():
    session = counting_session(3)
    features = SWAP_SETTING.describe(torch.from_numpy(session.states), torch.from_numpy(session.controls))[2]
    expected = [
        *(-1.0, 1.0),  # lanes 0 and 3.5 about the middle 1.75, halves of a lane
        *(0.0, 0.0),  # lateral speeds
        *(5.0 / 3.0, 0.0),  # 25 and 20 m/s about 20, in threes
        (105 - 94) / 10,  # robot ahead, in tens of metres
        *(2.0, 0.0, -4.0, 0.0),  # throttles 3 and -6 in units of 1.5, no steering
        1.0,  # seen
    ]
    assert features.tolist() == pytest.approx(expected)
    assert SWAP_SETTING.features == len(expected)


def test_a_window_by_hand():
    windows = cut(SWAP_SETTING, SMALL, [counting_session(9)])
    # now = 1, 3, 5: two steps seen at least, three to come
    assert windows["history"].shape == (3, 4, 12)
    assert windows["history"][:, :, -1].tolist() == [[0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert not windows["history"][0, :2].any()
    assert windows["robot_future"][1, :, 0].tolist() == [4, 5, 6]  # what brings about the rows after 3
    assert windows["human_future"][1, :, 0].tolist() == [-8, -10, -12]
    assert windows["human_path"][1].tolist() == [[0, 2], [0, 4], [0, 6]]
    assert windows["current"][1].tolist() == [[0, 11.5, 0, 25], [3.5, 0, 0, 20]]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.integers(1, 4))
def test_number_of_windows(steps, history, min_history, horizon, stride):
    options = Options(history=history, min_history=min_history, horizon=horizon, window_stride=stride)
    windows = cut(SWAP_SETTING, options, [counting_session(steps)] * 2)
    first = min(min_history, history) - 1
    expected = 2 * len([now for now in range(first, steps, stride) if now + horizon < steps])
    assert {len(tensor) for tensor in windows.values()} == {expected}
    assert windows["history"].shape[1:] == (history, 12)
    assert all(tensor.dtype == torch.float32 for tensor in windows.values())


def test_no_sessions_give_empty_windows_of_the_right_shapes():
    windows = cut(SWAP_SETTING, SMALL, [])
    assert {name: tuple(tensor.shape) for name, tensor in windows.items()} == {
        "history": (0, 4, 12),
        "robot_future": (0, 3, 2),
        "human_future": (0, 3, 2),
        "human_path": (0, 3, 2),
        "current": (0, 2, 4),
    }


@pytest.mark.parametrize("now", [1, 3, 5])
def test_the_planner_sees_what_the_forecaster_was_trained_on(now):
    session = counting_session(9)
    window = cut(SWAP_SETTING, SMALL, [session])["history"][(now - 1) // 2]
    motions = torch.from_numpy(session.states).float()[None, : now + 1]
    controls = torch.from_numpy(session.controls).float()[None, : now + 1]
    torch.testing.assert_close(past(SWAP_SETTING, motions, controls, 4)[0], window)
