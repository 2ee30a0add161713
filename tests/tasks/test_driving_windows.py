"""Cutting sessions into windows, and the scales of their features."""

import numpy as np
import pytest
import torch
from fedapps.tasks.driving.data import Session, cut, past
from fedapps.tasks.driving.options import SETTINGS, Options
from hypothesis import given, settings
from hypothesis import strategies as st

LANE_SWAP = SETTINGS["lane-swap"]
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
    features = LANE_SWAP.describe(torch.from_numpy(session.states), torch.from_numpy(session.controls))[2]
    expected = [
        *(-1.0, 1.0),  # lanes 0 and 3.5 about the middle 1.75, halves of a lane
        *(0.0, 0.0),  # lateral speeds
        *(5.0 / 3.0, 0.0),  # 25 and 20 m/s about 20, in threes
        (105 - 94) / 10,  # robot ahead, in tens of metres
        *(2.0, 0.0, -4.0, 0.0),  # throttles 3 and -6 in units of 1.5, no steering
        1.0,  # seen
    ]
    assert features.tolist() == pytest.approx(expected)
    assert LANE_SWAP.features == len(expected)


def test_a_window_by_hand():
    windows = cut(LANE_SWAP, SMALL, [counting_session(9)])
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
    windows = cut(LANE_SWAP, options, [counting_session(steps)] * 2)
    first = min(min_history, history) - 1
    expected = 2 * len([now for now in range(first, steps, stride) if now + horizon < steps])
    assert {len(tensor) for tensor in windows.values()} == {expected}
    assert windows["history"].shape[1:] == (history, 12)
    assert all(tensor.dtype == torch.float32 for tensor in windows.values())


def test_no_sessions_give_empty_windows_of_the_right_shapes():
    windows = cut(LANE_SWAP, SMALL, [])
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
    window = cut(LANE_SWAP, SMALL, [session])["history"][(now - 1) // 2]
    motions = torch.from_numpy(session.states).float()[None, : now + 1]
    controls = torch.from_numpy(session.controls).float()[None, : now + 1]
    torch.testing.assert_close(past(LANE_SWAP, motions, controls, 4)[0], window)
