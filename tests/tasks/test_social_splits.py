"""Which scenes train, validate and test."""

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.social.scenes import RatedScene, split_scenes
from hypothesis import given
from hypothesis import strategies as st


def scenes_of(count):
    corners = ((-1.0, -1.0), (2.0, -1.0), (0.0, 3.0))
    return [RatedScene(str(i), 50.0, ((1.0 + i, 2.0, 0.25),), (), (), corners) for i in range(count)]


@pytest.mark.parametrize(
    ("count", "sizes"), [(4, (2, 1, 1)), (66, (46, 10, 10)), (159, (111, 24, 24)), (123, (86, 18, 19))]
)
def test_sizes_are_those_of_table_3(count, sizes):
    assert tuple(map(len, split_scenes(scenes_of(count), "a", seed=0).values())) == sizes


@given(count=st.integers(4, 300), seed=st.integers(0, 100))
def test_every_scene_is_in_one_split(count, seed):
    scenes = scenes_of(count)
    splits = split_scenes(scenes, "a", seed=seed)
    train = count * 7 // 10
    validation = (count - train) // 2
    assert [len(part) for part in splits.values()] == [train, validation, count - train - validation]
    assert sorted((s for part in splits.values() for s in part), key=lambda s: int(s.identifier)) == scenes
    assert split_scenes(scenes, "a", seed=seed) == splits


def test_the_draw_depends_on_seed_and_participant():
    scenes = scenes_of(40)
    draws = [split_scenes(scenes, name, seed=seed)["test"] for name, seed in (("a", 0), ("b", 0), ("a", 1))]
    assert draws[0] != draws[1]
    assert draws[0] != draws[2]


@given(count=st.integers(4, 100), fractions=st.tuples(*[st.floats(0.001, 1)] * 2))
def test_smaller_fractions_are_part_of_larger_ones(count, fractions):
    scenes = scenes_of(count)
    whole = split_scenes(scenes, "a", seed=0)
    small, large = (split_scenes(scenes, "a", seed=0, train_fraction=share) for share in sorted(fractions))
    assert 1 <= len(small["train"]) <= len(large["train"]) <= len(whole["train"])
    assert large["train"][: len(small["train"])] == small["train"]
    for other in ("validation", "test"):
        assert small[other] == large[other] == whole[other]


def test_mirror_images_double_the_training_scenes_alone():
    plain = split_scenes(scenes_of(20), "a", seed=0, train_fraction=0.5)
    doubled = split_scenes(scenes_of(20), "a", seed=0, train_fraction=0.5, augment=True)
    assert len(plain["train"]) == 7
    assert doubled["train"] == plain["train"] + [scene.mirrored() for scene in plain["train"]]
    assert doubled["validation"] == plain["validation"]
    assert doubled["test"] == plain["test"]


@pytest.mark.parametrize("count", [0, 3])
def test_too_few_scenes(count):
    with pytest.raises(DataError, match=rf"l.json: participant 'l' rated {count} scenes; expected at least 4"):
        split_scenes(scenes_of(count), "l", seed=0)
