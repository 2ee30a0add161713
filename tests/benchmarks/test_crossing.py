"""The robot that crosses recorded people: its paths and costs by hand, and what a forecast changes."""

import numpy as np
import pytest

from benchmarks import crossing


def crowd(steps: int = 60) -> np.ndarray:
    """A person who walks north at 1 m/s, and one who stands far away."""
    north = np.stack([np.zeros(steps), 0.4 * np.arange(steps)], axis=1)
    return np.stack([north, np.full((steps, 2), 100.0)], axis=1)


def test_a_robot_changes_its_velocity_as_fast_as_it_can() -> None:
    plans = crossing.rolled(np.zeros(2), np.zeros(2))
    assert plans.shape == (49, 12, 2)
    assert not plans[0].any()  # it stops where it is
    east = plans[1 + 32]  # 1.5 m/s at an angle of 0: .6, 1.2 and 1.5 m/s after one, two and three steps
    np.testing.assert_allclose(east[:3], [[0.24, 0], [0.72, 0], [1.32, 0]])
    np.testing.assert_allclose(east[-1], [1.32 + 9 * 0.6, 0])


def test_a_plan_costs_its_way_and_what_is_missing_to_the_people() -> None:
    plans = np.array([[[0.0, 1.0], [0.0, 3.0]]])
    assert crossing.costs(plans, np.zeros(2), np.full((1, 1, 2, 2), np.nan)).tolist() == [1.0]  # it may stop at 1 m
    people = np.array([[[[0.0, 1.5], [9.0, 9.0]], [[0.0, 2.0], [9.0, 9.0]]]])  # two samples, .5 m and 1 m away
    assert crossing.costs(plans, np.zeros(2), people) == pytest.approx([1.0 + 20 * 0.25 / 2])


def test_encounters_are_beside_the_place_that_the_person_reaches() -> None:
    met = crossing.encounters(crowd(), 5)
    assert len(met) == 5
    first, second = met[0], crossing.encounters(crowd(), 60)[1]
    assert first.step == 7
    np.testing.assert_allclose([first.start, first.goal], [[4, 6], [-4, 6]])
    np.testing.assert_allclose(second.start, [-4, 6.4])  # from the other side
    assert crossing.encounters(np.full((60, 1, 2), 1.0), 5) == []


def test_a_robot_that_knows_the_future_passes_and_one_that_does_not_meets_the_person() -> None:
    places, person = crowd(), crossing.encounters(crowd(), 1)[0]
    known, blind = (crossing.cross(places, person, one) for one in (crossing.recorded, crossing.still))
    assert known.distance > 0.8 > blind.distance
    assert known.seconds < 16
    # on a straight way, constant velocity is the truth
    straight = crossing.cross(places, person, crossing.constant_velocity)
    assert straight == pytest.approx(known, abs=1e-6)


def test_forecasts_without_a_model_by_hand() -> None:
    places = np.array([[[0.0, 0.0], [np.nan, np.nan]], [[1.0, 2.0], [5.0, 5.0]], [[3.0, 3.0], [np.nan, np.nan]]])
    np.testing.assert_array_equal(crossing.still(places, 1)[:, 0, 11], [[1, 2], [5, 5]])
    np.testing.assert_array_equal(crossing.constant_velocity(places, 1)[:, 0, 1], [[3, 6], [5, 5]])
    np.testing.assert_array_equal(crossing.recorded(places, 1)[0, 0, :2], [[3, 3], [np.nan, np.nan]])
