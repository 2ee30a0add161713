"""Reading rated scenes: units, links, mirrors, the published files, and files that are wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.social.scenes import RatedScene, participant_files, read_participant, read_scenes, split_scenes
from hypothesis import given
from hypothesis import strategies as st

GIVEN = {
    "score": 79,
    "identifier": "01792 B",
    "room": [[-200, -100], [300, -100], [300, 400], [-200, 400], [-200, -100]],
    "humans": [
        {"id": 1, "xPos": 100, "yPos": 0, "orientation": 90},
        {"id": 4, "xPos": 200.5, "yPos": -50, "orientation": -270},
    ],
    "objects": [{"id": 2, "xPos": 0, "yPos": 300, "orientation": 180}],
    "links": [[1, 4, "interact"], [4, 1, "interact"], [4, 2, "interact"]],
    "robot": {"id": 0},
}


def folder_of(folder: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "a.json").write_text("\n".join(texts) + "\n")
    return folder


def place(low=-9.0, high=9.0):
    return st.floats(low, high, allow_nan=False)


poses = st.lists(st.tuples(place(), place(), place(-1, 1)), max_size=4).map(tuple)
corners = st.lists(st.tuples(place(), place()), min_size=3, max_size=6).map(tuple)
scenes = st.builds(RatedScene, st.text(), place(0, 100), poses, poses, st.just(()), corners)


def test_metres_half_turns_and_links_once(tmp_path):
    scene, after = read_participant(
        folder_of(tmp_path, GIVEN, "", GIVEN | {"identifier": "2", "links": [], "objects": []}), "a"
    )
    assert (scene.identifier, scene.score) == ("01792 B", 79.0)
    assert scene.humans == ((1.0, 0.0, 0.5), (2.005, -0.5, 0.5))  # -270 degrees are 90
    assert scene.objects == ((0.0, 3.0, 1.0),)
    assert scene.links == ((1, 2), (2, 3))
    assert scene.room == ((-2.0, -1.0), (3.0, -1.0), (3.0, 4.0), (-2.0, 4.0))
    assert (after.objects, after.links) == ((), ())


def test_a_file_that_changed_is_read_again(tmp_path):
    assert len(read_participant(folder_of(tmp_path, GIVEN), "a")) == 1
    folder_of(tmp_path, GIVEN, GIVEN | {"identifier": "2"})
    os.utime(tmp_path / "a.json", ns=(1, 1))
    assert len(read_participant(tmp_path, "a")) == 2


@given(scene=scenes)
def test_a_mirror_image_of_a_mirror_image_is_the_scene(scene):
    mirrored = scene.mirrored()
    assert mirrored.mirrored() == scene
    assert (mirrored.score, mirrored.links, mirrored.identifier) == (scene.score, scene.links, scene.identifier)
    for before, after in zip(scene.humans + scene.objects, mirrored.humans + mirrored.objects, strict=True):
        assert after == (-before[0], before[1], -before[2])


def test_a_scene_seen_from_elsewhere():
    scene = RatedScene(
        "1", 50.0, ((1.0, 2.0, 0.5),), ((0.0, 1.0, 0.0),), ((1, 2),), ((-1.0, 0.0), (3.0, 0.0), (0.0, 5.0))
    )
    moved = scene.seen_from(1.0, -1.0)
    assert moved.humans == ((0.0, 3.0, 0.5),)
    assert moved.objects == ((-1.0, 2.0, 0.0),)
    assert moved.room == ((-2.0, 1.0), (2.0, 1.0), (-1.0, 6.0))
    assert moved.seen_from(-1.0, 1.0) == scene


def human(**changed):
    return GIVEN | {"humans": [GIVEN["humans"][0], GIVEN["humans"][1] | changed]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({k: v for k, v in GIVEN.items() if k not in ("score", "room")}, "missing score, room; expected score, ident"),
        (GIVEN | {"score": 101}, "score = 101; expected a number from 0 to 100"),
        (GIVEN | {"score": -0.5}, "score = -0.5; expected a number from 0 to 100"),
        (GIVEN | {"score": "79"}, "score = '79'; expected a number"),
        (GIVEN | {"links": [[1, 9, "interact"]]}, r"links: \[1, 9, 'interact'\]; expected two .* ids .*: 1, 4, 2"),
        (GIVEN | {"links": [[1, 0, "interact"]]}, r"links: \[1, 0, 'interact'\]; expected two different ids"),
        (
            GIVEN | {"links": [[1, 1, "interact"]]},
            r"links: \[1, 1, 'interact'\]; expected two different ids of humans or objects",
        ),
        (GIVEN | {"links": [7]}, "links: 7; expected two different ids"),
        (GIVEN | {"links": {}}, "links = {}; expected a list"),
        (
            GIVEN | {"objects": [{**GIVEN["objects"][0], "id": i} for i in (2, 3)], "links": [[3, 2, "interact"]]},
            r"links: \[3, 2, 'interact'\] joins two objects; expected at least one human",
        ),
        (human(id=1), "humans: id = 1 twice; expected another than 0, 1"),
        (human(id="x"), "humans: .* expected an object whose id is a whole number"),
        (human(xPos=None), "humans: id 4: xPos = None; expected a number of centimetres within 1e"),
        (human(orientation=10**400), "humans: id 4: orientation = 10000.*; expected a number of degrees within 1e"),
        (GIVEN | {"room": [[0, 0], [1, 1]]}, r"room = \[\[0, 0\], \[1, 1\]\]; expected at least 3 different points"),
        (
            GIVEN | {"room": [[0, 0], [1, "1"], [2, 2]]},
            r"room: \[1, '1'\]; expected \[x, y\], two numbers of centimetres",
        ),
        (
            GIVEN | {"room": [[x / 100, y / 100] for x, y in GIVEN["room"]]},
            "the room is 5 cm wide; expected centimetres, not metres",
        ),
        (GIVEN, "identifier '01792 B' occurs for the second time .first in line 1., so that a test scene could be"),
        (GIVEN | {"split": "tests"}, "split = 'tests'; expected train, validation, test"),
        (GIVEN | {"robot": 0}, "robot: 0; expected an object whose id is a whole number"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, line, message):
    with pytest.raises(DataError, match=f"a.json, line 2: {message}"):
        read_participant(folder_of(tmp_path, GIVEN, line), "a")


def test_a_split_stands_in_all_lines_or_in_none(tmp_path):
    lines = [GIVEN | {"identifier": str(n), "split": "test"} for n in range(2)]
    assert [scene.split for scene in read_participant(folder_of(tmp_path, *lines), "a")] == ["test", "test"]
    with pytest.raises(DataError, match=r"a\.json, line 3: missing split; expected it in all lines or in none"):
        read_participant(folder_of(tmp_path, *lines, GIVEN), "a")


def test_scores_on_another_scale_are_refused(tmp_path):
    lines = [GIVEN | {"identifier": str(n), "score": n / 4} for n in range(5)]
    with pytest.raises(DataError, match=r"no score is above 1, as on a scale from 0 to 1; expected 0 .worst. to 100"):
        read_participant(folder_of(tmp_path, *lines), "a")


def test_orientations_in_radians_are_refused(tmp_path):
    people = [{"id": n, "xPos": 100 * n, "yPos": 0, "orientation": n / 2} for n in range(1, 5)]
    lines = [GIVEN | {"identifier": str(n), "humans": people, "objects": [], "links": []} for n in range(2)]
    folder = folder_of(tmp_path, *lines)
    for read in (lambda: read_participant(folder, "a"), lambda: read_scenes(folder / "a.json")):
        with pytest.raises(DataError, match=r"a\.json: no orientation is above 2 pi, as in radians; expected degrees"):
            read()


def test_a_participant_with_two_files(tmp_path):
    for folder in (tmp_path, tmp_path / "raw_data"):
        folder.mkdir(exist_ok=True)
        folder_of(folder, GIVEN)
        (folder / "._a.json").touch()
    with pytest.raises(DataError, match=r"has raw_data/\*\.json and \*\.json, and could be read in 2 ways"):
        participant_files(tmp_path)
    (tmp_path / "a.json").unlink()
    assert participant_files(tmp_path) == {"a": tmp_path / "raw_data" / "a.json"}


def test_a_participant_without_a_file(tmp_path):
    with pytest.raises(DataError, match=r"no file z.json of participant 'z'; found none"):
        read_participant(tmp_path, "z")
    with pytest.raises(DataError, match=r"no file z.json of participant 'z'; found a \(social.participants"):
        read_participant(folder_of(tmp_path, GIVEN), "z")


@pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")
def test_the_published_files():
    folder = Path(os.environ["FEDAPPS_DATA"]) / "socnav1" / "raw_data"
    assert sorted(participant_files(folder)) == list("abcdefghijkl")
    counts = {name: len(read_participant(folder, name)) for name in "adel"}
    assert counts == {"a": 159, "d": 124, "e": 123, "l": 66}
    for scene in read_participant(folder, "a"):
        assert all(1 <= first < second <= len(scene.humans) + len(scene.objects) for first, second in scene.links)
        assert all(-1 <= turn <= 1 for _, _, turn in scene.humans + scene.objects)


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


def test_scenes_with_a_split_stay_in_it_when_others_follow():
    scenes = [replace(scene, split=("train", "test", "validation")[i % 3]) for i, scene in enumerate(scenes_of(30))]
    few, many = split_scenes(scenes[:12], "a", seed=0), split_scenes(scenes, "a", seed=0)
    for split in many:
        assert {scene.split for scene in many[split]} == {split}
        assert len(many[split]) == 10
        assert {scene.identifier for scene in few[split]} <= {scene.identifier for scene in many[split]}
    assert len(split_scenes(scenes, "a", seed=0, train_fraction=0.5, augment=True)["train"]) == 10
    with pytest.raises(DataError, match=r"a.json: no scene of the split train; expected at least one"):
        split_scenes([replace(scene, split="test") for scene in scenes], "a", seed=0)


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
