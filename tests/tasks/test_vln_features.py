"""Features: the field's files, and objects projected into views, against a few lines of arithmetic."""

import base64
import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from drawn_houses import NAMES, POSITIONS, saved, speaking, task_with, write_graph, write_world
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.connectivity import Graph, read_graphs
from fedapps.tasks.vln.features import CLASSES, FOCAL, ROOMS, ObjectViews, read_boxes, read_features, train_classifier
from fedapps.tasks.vln.instructions import cached, key_of
from fedapps.tasks.vln.object_features import BLOCKS, WIDTH, cached_object_features, object_features, surroundings
from fedapps.tasks.vln.task import VlnTask
from hypothesis import given
from hypothesis import strategies as st

KEYS = ["houseA_v00", "houseA_v01"]
VALUES = np.random.default_rng(0).standard_normal((2, 36, 5)).astype(np.float32)


def write_npz(folder):
    np.savez(folder / "f.npz", **dict(zip(KEYS, VALUES, strict=True)))
    return folder / "f.npz"


def write_tsv(folder, ending=""):
    opener = gzip.open if ending else open
    with opener(folder / f"f.tsv{ending}", "wt", newline="") as file:
        for key, value in zip(KEYS, VALUES, strict=True):
            code = base64.b64encode(value.tobytes()).decode()
            csv.writer(file, delimiter="\t").writerow([*key.split("_"), 640, 480, 60, code])
    return folder / f"f.tsv{ending}"


def write_hdf5(folder):
    import h5py

    with h5py.File(folder / "f.hdf5", "w") as file:
        for key, value in zip(KEYS, VALUES, strict=True):
            file.create_dataset(key, data=value, compression="gzip")
    return folder / "f.hdf5"


@pytest.mark.parametrize("write", [write_npz, write_tsv, lambda f: write_tsv(f, ".gz"), write_hdf5])
def test_every_format_gives_the_same_features(tmp_path, write):
    path = write(tmp_path)
    np.testing.assert_array_equal(read_features(path, KEYS[::-1], 5), VALUES[::-1])
    np.testing.assert_array_equal(read_features(path, KEYS[1:], 5), VALUES[1:])
    with pytest.raises(DataError, match=r"no features for 12 of 13 viewpoints: houseA_x00, .* and 2 more"):
        read_features(path, [KEYS[0], *(f"houseA_x{n:02d}" for n in range(12))], 5)
    with pytest.raises(
        DataError, match=r"houseA_v00 have the shape \[36, 5\]; expected \[36, 2048\]: set vln.features"
    ):
        read_features(path, KEYS, 2048)


def test_files_that_are_none(tmp_path):
    with pytest.raises(DataError, match=r"vln\.feature-file = .*f\.npz': no such file"):
        read_features(tmp_path / "f.npz", KEYS, 5)
    for name, said in (("f.npz", "cannot be read"), ("f.tsv", "1 columns; expected 6"), ("f.bin", "ends in .hdf5")):
        (tmp_path / name).write_text("sorry")
        with pytest.raises(DataError, match=said):
            read_features(tmp_path / name, KEYS, 5)
    VALUES_WITH_NAN = VALUES.copy()
    VALUES_WITH_NAN[1, 2, 3] = np.nan
    np.savez(tmp_path / "nan.npz", **dict(zip(KEYS, VALUES_WITH_NAN, strict=True)))
    with pytest.raises(DataError, match="houseA_v01 have a value that is not finite"):
        read_features(tmp_path / "nan.npz", KEYS, 5)


# -- objects ---------------------------------------------------------------------------------------------------


def views_of(rows, labels=("sofa",), objects=("1",)):
    """Boxes given as viewpoint, object, label, view, area, centre right and up, and perhaps whether they are cut."""
    columns = list(zip(*rows, strict=True))
    return ObjectViews(
        *(np.array(column, dtype=np.int64) for column in columns[:4]),
        np.array(columns[4], dtype=float),
        np.array(columns[5], dtype=float),
        np.array(columns[6] if len(columns) > 6 else [False] * len(rows)),
        labels,
        objects,
    )


def test_the_direction_of_a_box_by_hand():
    """In view 12 + 3, which looks east, a box 30 degrees right of the middle is at heading 120; one 15 up at 15."""
    right, up = FOCAL * np.tan(np.radians(30)), FOCAL * np.tan(np.radians(15))
    boxes = views_of([(0, 0, 0, 15, 0.1, (right, 0)), (1, 0, 0, 15, 0.1, (0, up)), (1, 0, 0, 16, 0.1, (300, up))])
    rows, rays = boxes.bearings()
    whole = views_of([(0, 0, 0, 15, 1.0, (0, 0), True), (0, 0, 0, 16, 0.1, (300, 0), False)])
    assert whole.bearings()[0].tolist() == [1]  # a box that fills the picture says little of where its object is
    assert rows.tolist() == [0, 1]  # of two boxes the one nearest to the middle
    heading, elevation = np.radians(120), np.radians(15)
    np.testing.assert_allclose(rays[0], [np.sin(heading), np.cos(heading), 0], atol=1e-12)
    np.testing.assert_allclose(rays[1], [np.cos(elevation), 0, np.sin(elevation)], atol=1e-12)


@given(st.floats(0, 6.2), st.floats(-0.9, 0.9), st.integers(0, 35))
def test_a_projected_direction_comes_back(heading, elevation, view):
    """A direction that a view shows, put into its picture and read out of it again."""
    h, e = np.radians(30.0 * (view % 12)), np.radians(30.0 * (view // 12 - 1))
    ray = np.array([np.sin(heading) * np.cos(elevation), np.cos(heading) * np.cos(elevation), np.sin(elevation)])
    ahead = np.array([np.sin(h) * np.cos(e), np.cos(h) * np.cos(e), np.sin(e)])
    right = np.array([np.cos(h), -np.sin(h), 0])
    up = np.cross(right, ahead)
    depth = ray @ ahead
    if depth < 0.1:
        return
    centre = FOCAL * (ray @ right) / depth, FOCAL * (ray @ up) / depth
    _, rays = views_of([(0, 0, 0, view, 0.1, centre)]).bearings()
    np.testing.assert_allclose(rays[0], ray, atol=1e-9)


def line_of_three():
    """Viewpoints at 0, 4 and 9 m to the north, each of which sees the next."""
    positions = np.array([[0.0, 0, 0], [0, 4, 0], [0, 9, 0]])
    joined = np.zeros((3, 3), dtype=bool)
    for one, other in ((0, 1), (1, 2)):
        joined[one, other] = joined[other, one] = True
    return Graph(
        "house", ("a", "b", "c"), positions, joined, joined | np.eye(3, dtype=bool)[:, ::-1] * ~np.eye(3, dtype=bool)
    )


def test_what_is_around_by_hand():
    """b has an object 1.6 m to its east, which was not triangulated; c one that was, 1 m west of b, that b has too."""
    boxes = views_of(
        [(1, 0, 0, 15, 0.1, (0, 0)), (2, 1, 1, 21, 0.1, (0, 0)), (1, 1, 1, 21, 0.1, (0, 0))],
        labels=("sofa", "bed"),
        objects=("east", "west"),
    )
    a, b, c = surroundings(line_of_three(), boxes, {("house", "west"): np.array([-1.0, 4.0, 0.0])})
    assert b.own.tolist() == [True, True]
    np.testing.assert_allclose(b.distance, [1.6, 1.0])
    assert a.own.tolist() == [False, False]  # c is 9 m away, but b is in sight
    np.testing.assert_allclose(a.distance, [np.hypot(1.6, 4), np.hypot(1, 4)])
    np.testing.assert_allclose(a.weight, np.exp(-a.distance / 3))
    # 21.8 degrees east of north: shown by the views that look north, and 30 degrees east, at eye level.
    assert np.flatnonzero(a.in_view[0]).tolist() == [12, 13]
    # 14 degrees west of north.
    assert np.flatnonzero(a.in_view[1]).tolist() == [12, 23]
    assert sorted(c.label.tolist()) == [0, 1]
    assert c.own[c.label == 1].tolist() == [True]
    assert c.own[c.label == 0].tolist() == [False]


def test_rooms_are_told_by_what_is_in_them():
    kitchen, bedroom = ROOMS.index("kitchen"), ROOMS.index("bedroom")
    amounts = [{"stove": 1.0}, {"bed": 1.0}] * 20
    classifier = train_classifier(amounts, [kitchen, bedroom] * 20)
    posterior = classifier.posterior([{"stove": 1.0, "spaceship": 3.0}, {"bed": 0.5}, {}])
    np.testing.assert_allclose(posterior.sum(axis=1), 1)
    assert posterior[0].argmax() == kitchen
    assert posterior[1].argmax() == bedroom
    assert abs(posterior[2, kitchen] - posterior[2, bedroom]) < 1e-3


# -- all together ----------------------------------------------------------------------------------------------


def write_annotations(folder, scans=("houseA",)):
    for scan in scans:
        write_graph(folder, scan)
    boxes = {scan: {"v01": {"3": ["sofa", [12, 13], [[288, 216, 64, 48], [0, 0, 640, 480]]]}} for scan in scans}
    (folder / "bbox.json").write_text(json.dumps(boxes))
    (folder / "label_mpcat40.csv").write_text("name,count,mpcat40\nsofa,1,sofa\n")
    (folder / "objects3d.csv").write_text(
        "scan,object_id,name,x,y,z,n_viewpoints,median_residual_deg\n"
        + "".join(f"{s},3,sofa,2,5,1.5,2,90\n" for s in scans)
    )
    rows = [f"{scans[0]},{name},12,hallway,train" for name in NAMES]
    (folder / "rooms.csv").write_text("\n".join(["scan,viewpoint,label_id,label_name_inferred,split", *rows]) + "\n")
    return folder


def block_of(name):
    start = sum(width for other, width in list(BLOCKS.items())[: list(BLOCKS).index(name)])
    return slice(start, start + BLOCKS[name])


def test_blocks_of_a_house_by_hand(tmp_path):
    graphs = read_graphs(write_annotations(tmp_path))
    features = object_features(tmp_path, graphs)["houseA"]
    assert features.shape == (len(NAMES), 36, 98)
    sofa = CLASSES.index("sofa")
    own = features[..., block_of("own")]
    assert own[1, 12, sofa] == pytest.approx(np.log1p(64 * 48 / (640 * 480)))
    assert own[1, 13, sofa] == pytest.approx(np.log1p(1))
    assert own.astype(bool).sum() == 2
    # The residual is too large to trust the position: 1.6 m north of v01, at (2, 1.6), up to the box's place in it.
    propagated = features[..., block_of("propagated")]
    assert not propagated[1].any()
    distance = np.hypot(2, 1.6)
    assert propagated[0, 13, sofa] == pytest.approx(np.log1p(np.exp(-distance / 3)), rel=1e-5)
    # v00 sees three viewpoints to the north within 5 m and walks to one: v04 and v08 straight on, v05 and v09 askew.
    geometry = features[0, 12, block_of("geometry")]
    seen = [p for p in range(1, 13) if np.linalg.norm(POSITIONS[p] - POSITIONS[0]) < 5]
    shown = [p for p in seen if POSITIONS[p][0] <= np.tan(np.pi / 6) * POSITIONS[p][1] + 1e-9 and POSITIONS[p][1] > 0]
    metres = [np.linalg.norm(POSITIONS[p] - POSITIONS[0]) for p in shown]
    expected = [np.log1p(len(shown)), np.log1p(1), np.exp(-2 / 3), np.exp(-np.mean(metres) / 3)]
    np.testing.assert_allclose(geometry, expected, rtol=1e-5)
    rooms = features[..., block_of("room")]
    assert rooms[0, 12].argmax() == ROOMS.index("hallway")
    assert not rooms[0, 18].any()  # nothing to the south


def test_projected_labels_depend_on_the_label_alone(tmp_path):
    folder = write_annotations(tmp_path, ("houseA", "houseB"))
    graphs = read_graphs(folder)
    both = object_features(folder, graphs, 7)
    assert both["houseA"].shape[2] == WIDTH + 7
    np.testing.assert_array_equal(both["houseA"], both["houseB"])
    alone = object_features(folder, {"houseA": graphs["houseA"]}, 7)
    np.testing.assert_array_equal(alone["houseA"][..., WIDTH:], both["houseA"][..., WIDTH:])


def test_made_features_are_kept_until_an_input_changes(tmp_path, monkeypatch):
    folder = write_annotations(tmp_path / "data")
    graphs, cache = read_graphs(folder), tmp_path / "cache"
    first = cached_object_features(folder, graphs, ["houseA"], 0, cache)
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr("fedapps.tasks.vln.object_features.object_features", None)
    np.testing.assert_array_equal(cached_object_features(folder, graphs, ["houseA"], 0, cache), first)
    monkeypatch.undo()
    (folder / "label_mpcat40.csv").write_text("name,count,mpcat40\nsofa,1,bed\n")
    assert (cached_object_features(folder, graphs, ["houseA"], 0, cache) != first).any()
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bbox.json", None, "no bbox.json, of which vln.features = 'objects' are made"),
        ("bbox.json", '{"houseA": {"v01": {"3": ["sofa", [36], [[0, 0, 1, 1]]]}}}', "views from 36 to 36"),
        ("bbox.json", '{"houseA": {"v01": {"3": ["sofa", [1, 2], [[0, 0, 1, 1]]]}}}', "ValueError"),
        (
            "label_mpcat40.csv",
            "name,count,mpcat40\nsofa,1,spaceship\n",
            "line 2, column mpcat40: 'spaceship'; expected one of wall",
        ),
        ("rooms.csv", None, r"no rooms.csv with rooms of training houses"),
        (
            "rooms.csv",
            "scan,viewpoint,label_id,label_name_inferred,split\na,b,1,moon,train\n",
            "line 2, column label_name_inferred: 'moon'; expected one of office",
        ),
        ("objects3d.csv", "scan,object_id,x\nhouseA,3,1\n", "line 1: no column y, z, median_residual_deg; found scan"),
    ],
)
def test_annotations_that_cannot_be_used(tmp_path, name, content, said):
    folder = write_annotations(tmp_path)
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(DataError, match=said):
        object_features(folder, read_graphs(folder))


def test_houses_without_boxes_have_none(tmp_path):
    folder = write_annotations(tmp_path)
    write_graph(folder, "houseB")
    assert len(read_boxes(folder, read_graphs(folder))["houseB"].view) == 0
    assert object_features(folder, read_graphs(folder))["houseB"][..., : BLOCKS["own"]].sum() == 0


# Cached folders, and the labels of a speaker that are kept in them.


def write_text(text):
    def compute(folder):
        (folder / "text").write_text(text)

    return compute


def contents(cache):
    return {path.name: (path / "text").read_text() for path in cache.iterdir()}


# -- folders -----------------------------------------------------------------------------------------------------


def test_what_is_there_is_not_computed_again(tmp_path):
    cache = tmp_path / "some" / "cache"
    for text in ("first", "second"):
        assert (cached(cache, "key", write_text(text)) / "text").read_text() == "first"
    assert contents(cache) == {"key": "first"}


def test_an_interrupted_computation_leaves_nothing(tmp_path):
    def interrupted(folder):
        write_text("half")(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached(tmp_path, "key", interrupted)
    assert contents(tmp_path) == {}

    def full(folder):
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        cached(tmp_path, "key", full)
    assert contents(tmp_path) == {}


def test_of_two_processes_at_the_same_time_the_first_to_finish_counts(tmp_path):
    def slow(folder):
        cached(tmp_path, "key", write_text("of the other"))
        write_text("mine")(folder)

    assert (cached(tmp_path, "key", slow) / "text").read_text() == "of the other"
    assert contents(tmp_path) == {"key": "of the other"}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2)), max_size=3), st.data())
def test_keys_differ_where_inputs_do(parts, data):
    other = data.draw(st.permutations(parts) | st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=2))))
    assert (key_of(parts) == key_of(other)) == (parts == other)
    assert len(key_of(parts)) == 32


# -- labels ------------------------------------------------------------------------------------------------------


@pytest.fixture
def task(tmp_path):
    return task_with(stage="pre-exploration", **speaking(tmp_path))


@pytest.fixture
def calls(monkeypatch):
    """How many paths each call of the speaker describes."""
    from fedapps.tasks.vln import nodes

    found, describe = [], nodes.label_paths

    def counted(speaker, houses, words, paths, *more):
        found.append(len(paths))
        return describe(speaker, houses, words, paths, *more)

    monkeypatch.setattr(nodes, "label_paths", counted)
    return found


def with_options(task, **changes):
    return VlnTask(replace(task.options, **changes))


def labels(task, homes):
    return task.load_node(homes, 2, 3).extra["paths"]["train"]


def test_a_house_is_labelled_once(homes, task, calls):
    first, again = labels(task, homes), labels(task, homes)
    assert calls == [5]
    assert first == again
    assert {len(path.instructions) for path in first} == {1}


def test_pooled_houses_have_the_labels_of_their_nodes(tmp_path, calls):
    homes = write_world(tmp_path / "world", seen=("houseA",), unseen=("houseC", "houseD"))
    task = task_with(stage="pre-exploration", **speaking(tmp_path))
    nodes = [task.load_node(homes, partition, 3).extra["paths"]["train"] for partition in (1, 2)]
    assert task.load_all(homes).extra["paths"]["train"] == nodes[0] + nodes[1]
    assert calls == [5, 5]


def test_other_inputs_are_other_labels(homes, task, calls, tmp_path, words):
    labels(task, homes)
    torch.manual_seed(7)
    other = saved(task_with(stage="speaker").build_model(), tmp_path / "other.safetensors")
    listeners = [saved(task_with().build_model(), tmp_path / f"listener-{number}.safetensors") for number in range(2)]
    for changes in (
        {"speaker_file": other},
        {"sampled_paths": 4},
        {"sample_seed": 1},
        {"vocabulary_file": words},
        {"max_length": 20},
        {"ablation": "angles-only"},
        {"speaker_temperature": 1.0},
        {"speaker_temperature": 1.0, "sample_seed": 1},
        {"speaker_temperature": 1.0, "speaker_samples": 2, "listener_file": listeners[0]},
        {"speaker_temperature": 1.0, "speaker_samples": 2, "listener_file": listeners[1]},
    ):
        before = len(calls)
        changed = with_options(task, **changes)
        assert labels(changed, homes) == labels(changed, homes)
        assert len(calls) == before + 1, changes
    unchanged = len(calls)
    labels(with_options(task, augmented_weight=0.1, hidden=8, learning="imitation"), homes)
    assert len(calls) == unchanged


def test_another_graph_is_another_label(tmp_path, calls):
    task, worlds = task_with(stage="pre-exploration", **speaking(tmp_path)), []
    for name in ("one", "two"):
        worlds.append(write_world(tmp_path / name))
    graph = next(worlds[1].rglob("houseC_connectivity.json"))
    graph.write_text(graph.read_text().replace("6.0", "6.25"))
    for homes in worlds:
        labels(task, homes)
    assert calls == [5, 5]
