"""The files of a simulated world, as the task reads them."""

from dataclasses import replace

import numpy as np
import pytest
from fedapps.tasks.social.scenes import read_participant
from fedapps.tasks.social.world import Body, Scene, Taste, disturbance, draw_scene, draw_taste, rate, write_world
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.base.seeding import generator

RATERS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, RATERS, seed=3, scenes=61)
    return folder


def test_every_rater_has_a_file_that_the_task_reads(folder):
    for rater in RATERS:
        scenes = read_participant(folder, rater)
        assert len({scene.identifier for scene in scenes}) == len(scenes) == 61
        assert all(0 <= scene.score <= 100 for scene in scenes)
        assert any(scene.humans and scene.objects and scene.links for scene in scenes)


def test_half_of_the_scenes_are_rated_by_all_and_not_alike(folder):
    rated = {rater: {scene.identifier: scene for scene in read_participant(folder, rater)} for rater in RATERS}
    common = sorted(set.intersection(*(set(scenes) for scenes in rated.values())))
    assert len(common) == 30
    assert len(set.union(*(set(scenes) for scenes in rated.values()))) == 30 + 3 * 31
    for name in common:
        assert len({(s[name].humans, s[name].objects, s[name].links, s[name].room) for s in rated.values()}) == 1
    correlations = np.corrcoef([[rated[rater][name].score for name in common] for rater in RATERS])
    assert ((correlations > 0.3) & (correlations < 0.995))[np.triu_indices(3, 1)].all()
    orders = [[s.identifier for s in read_participant(folder, rater) if s.identifier in common] for rater in RATERS]
    assert orders[0] != orders[1]


def test_worlds_repeat_with_their_seed(folder, tmp_path):
    written = write_world(tmp_path / "again", RATERS, seed=3, scenes=61)
    assert [path.name for path in written] == ["a.json", "b.json", "c.json"]
    assert all(path.read_bytes() == (folder / path.name).read_bytes() for path in written)
    other = write_world(tmp_path / "other", RATERS, seed=4, scenes=61)
    assert all(path.read_bytes() != (folder / path.name).read_bytes() for path in other)


def test_a_world_without_scenes(tmp_path):
    with pytest.raises(ValueError, match="scenes = 0: must be at least 1"):
        write_world(tmp_path, RATERS, seed=0, scenes=0)


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
