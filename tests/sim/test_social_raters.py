"""Simulated ratings: what disturbs, hand-worked, and how tastes differ."""

from dataclasses import replace

import numpy as np
import pytest
from fedapps.sim.seeding import generator
from fedapps.sim.social.scenes import Body, Scene, draw_scene
from fedapps.sim.social.world import Taste, disturbance, draw_taste, rate
from hypothesis import given, settings
from hypothesis import strategies as st

ROOM = np.array([[-4.0, -4.0], [4.0, -4.0], [4.0, 4.0], [-4.0, 4.0]])
TASTE = Taste(
    distance=1.0, front=0.25, closeness=2.0, crossing=0.5, crowding=0.8, bias=0.0, contrast=1.0, noise=0.0
)  # fmt: skip
FACING, TURNED_AWAY = Body(True, 0, 1, 0), Body(True, 0, 1, 180)


def scene_of(*bodies, links=()):
    return Scene(bodies, tuple(links), ROOM)


def test_a_person_is_disturbed_more_from_the_front():
    """Personal space reaches 1.25 m ahead and 0.75 m behind; one of the eight of a crowd is there."""
    crowd = 0.8 / 8
    assert disturbance(scene_of(FACING), TASTE) == pytest.approx(2 * np.exp(-(1 / 1.25**2)) + crowd)
    assert disturbance(scene_of(TURNED_AWAY), TASTE) == pytest.approx(2 * np.exp(-(1 / 0.75**2)) + crowd)


def test_the_robot_stands_in_a_conversation():
    """Two people 4 m apart who face each other, with the robot 0.3 m beside the middle of the line between them."""
    left, right = Body(True, -2, 0.3, 90), Body(True, 2, 0.3, -90)
    away = np.hypot(2, 0.3)
    intrusion = 2 * 2 * np.exp(-((away / (1 + 0.25 * 2 / away)) ** 2))
    crowd = 0.8 * 2 / 8
    assert disturbance(scene_of(left, right), TASTE) == pytest.approx(intrusion + crowd)
    crossed = 0.5 * np.exp(-((0.3 / 0.5) ** 2))
    assert disturbance(scene_of(left, right, links=[(0, 1)]), TASTE) == pytest.approx(intrusion + crossed + crowd)


def test_nobody_is_disturbed_in_an_empty_room_or_by_objects():
    for scene in (scene_of(), scene_of(Body(False, 0, 0.5, 0))):
        assert disturbance(scene, TASTE) == 0
        assert rate(scene, TASTE, np.random.default_rng(0)) == 100
        assert rate(scene, replace(TASTE, contrast=0.5, bias=-10), np.random.default_rng(0)) == 65


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_scores_are_whole_numbers_from_0_to_100(seed):
    rng = np.random.default_rng(seed)
    score = rate(draw_scene(rng), replace(draw_taste(rng), noise=60.0), rng)
    assert type(score) is int
    assert 0 <= score <= 100


@pytest.mark.parametrize("seed", range(4))
def test_two_raters_agree_in_part(seed):
    scenes = [draw_scene(generator(seed, "scene", i)) for i in range(150)]
    raters = [(draw_taste(generator(seed, "taste", i)), generator(seed, "noise", i)) for i in range(4)]
    scores = np.array([[rate(scene, taste, rng) for scene in scenes] for taste, rng in raters])
    correlations = np.corrcoef(scores)[np.triu_indices(4, 1)]
    assert (correlations > 0.5).all()
    assert (correlations < 0.995).all()
    assert len({round(mean) for mean in scores.mean(axis=1)}) > 1
