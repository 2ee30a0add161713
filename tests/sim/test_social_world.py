"""The files of a simulated world, as the task reads them."""

import numpy as np
import pytest
from fedapps.sim.social.world import write_world
from fedapps.tasks.social.scenes import read_participant

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
