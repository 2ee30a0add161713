"""The world of point masses: optimal gains, rollouts and files."""

import csv

import numpy as np
import pytest
from fedapps.tasks.lqr import world as lqr
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize(("weight", "gain"), [(1.0, (0.422, 1.244)), (50.0, (0.107, 0.532)), (100.0, (0.0795, 0.448))])
def test_gains_of_the_three_robots(weight, gain):
    assert lqr.optimal_gain(weight) == pytest.approx(gain, abs=5e-4)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 200.0))
def test_gain_is_what_value_iteration_converges_to(weight):
    P = np.eye(2)
    for _ in range(400):
        gain = lqr.B.T @ P @ lqr.A / (weight + lqr.B.T @ P @ lqr.B)
        P = np.eye(2) + lqr.A.T @ P @ (lqr.A - lqr.B @ gain)
    assert lqr.optimal_gain(weight) == pytest.approx(gain[0], rel=1e-6)


@pytest.mark.parametrize(("robots", "weights"), [(1, (1.0,)), (2, (1.0, 100.0)), (3, (1.0, 50.0, 100.0)), (5, None)])
def test_control_weights(robots, weights):
    found = lqr.control_weights(robots)
    assert found == pytest.approx(weights or (1.0, 10**0.5, 10.0, 10**1.5, 100.0))


def test_no_robots_is_an_error():
    with pytest.raises(ValueError, match="num_robots = 0"):
        lqr.control_weights(0)


def rollouts(weight=1.0, count=40, horizon=30, noise=0.01):
    rng = np.random.default_rng(0)
    return lqr.trajectories(weight, count, horizon, start_range=10.0, noise_variance=noise, rng=rng)


def test_without_noise_the_expert_obeys_its_equations_and_reaches_the_origin():
    rows = rollouts(noise=0.0, count=5)
    y, v, u, next_y, next_v = np.moveaxis(rows, -1, 0)
    np.testing.assert_allclose(u, -(np.stack((y, v), -1) @ lqr.optimal_gain(1.0)), atol=1e-12)
    np.testing.assert_allclose((next_y, next_v), (y + v, v + u), atol=1e-12)
    np.testing.assert_array_equal(rows[:, 1:, :2], rows[:, :-1, 3:])
    assert np.abs(rows[:, -1, 3:]).max() < 1e-3


def test_noise_has_the_stated_variance_on_the_control_and_on_each_component_of_the_state():
    y, v, u, next_y, next_v = np.moveaxis(rollouts(count=2000), -1, 0)
    residuals = (u + np.stack((y, v), -1) @ lqr.optimal_gain(1.0), next_y - y - v, next_v - v - u)
    for residual in residuals:  # 60,000 draws: the variance's own deviation is 0.6 %
        assert residual.var() == pytest.approx(0.01, rel=0.03)
        assert residual.mean() == pytest.approx(0.0, abs=2e-3)


def test_files_of_a_world(tmp_path):
    paths = lqr.write_world(tmp_path, 3, seed=7)
    assert [path.name for path in paths] == ["robot-00.csv", "robot-01.csv", "robot-02.csv"]
    with paths[1].open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == lqr.COLUMNS
    assert len(rows) == 40 * 30
    assert sum(row["split"] == "test" for row in rows) == 4 * 30
    assert {row["control_weight"] for row in rows} == {"50"}
    assert rows[30]["trajectory"] == "1"
    assert rows[30]["step"] == "0"


def test_a_robots_data_depend_on_the_seed_alone(tmp_path):
    def content(folder, robots, seed):
        return lqr.write_world(tmp_path / folder, robots, seed, count=2, horizon=3)[0].read_bytes()

    assert content("a", 3, 0) == content("b", 4, 0)  # the first robot has R = 1 in both
    assert content("a", 3, 0) != content("c", 3, 1)


@pytest.mark.parametrize(("fraction", "tests"), [(0.0, 1), (0.5, 2), (1.0, 3)])
def test_both_splits_always_exist(tmp_path, fraction, tests):
    path = lqr.write_world(tmp_path, 1, 0, count=4, horizon=1, test_fraction=fraction)[0]
    assert path.read_text().count(",test,") == tests


def test_one_trajectory_cannot_be_split(tmp_path):
    with pytest.raises(ValueError, match="count = 1"):
        lqr.write_world(tmp_path, 1, 0, count=1)
