"""The files of made-up houses: formats, shortest paths, and repeatability."""

import csv
import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from fedapps.tasks.vln.connectivity import shortest_paths
from fedapps.tasks.vln.features import FOCAL
from fedapps.tasks.vln.world.catalogue import OBJECTS, ROOM_LABELS
from fedapps.tasks.vln.world.house import SampledPath, draw_house, sample_paths
from fedapps.tasks.vln.world.plan import view_axes
from fedapps.tasks.vln.world.wording import Annotator, describe, draw_habits
from fedapps.tasks.vln.world.world import SPLITS, HouseWorld, write_houses
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from fedapps.base.seeding import generator

WORLD = HouseWorld(houses=4, unseen_houses=2, paths=30, seen_paths=4)
real_data = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("houses")
    write_houses(folder, WORLD, seed=1)
    return folder


@pytest.fixture(scope="module")
def splits(folder):
    return {split: json.loads((folder / "r2r" / f"R2R_{split}.json").read_text()) for split in SPLITS}


@pytest.fixture(scope="module")
def graphs(folder):
    files = folder / "mp3d_connectivity" / "connectivity"
    scans = (files / "scans.txt").read_text().split()
    return {scan: json.loads((files / f"{scan}_connectivity.json").read_text()) for scan in scans}


@pytest.fixture(scope="module")
def boxes(folder):
    return json.loads((folder / "reverie_bbox" / "bbox.json").read_text())


def rows(file):
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def places(graph):
    return np.array([np.reshape(node["pose"], (4, 4))[:3, 3] for node in graph])


def test_the_files_are_those_of_the_real_data(folder):
    graphs = [f"mp3d_connectivity/connectivity/{scan}_connectivity.json" for scan in WORLD.scans()]
    assert set(digest(folder)) == {
        *graphs,
        "mp3d_connectivity/connectivity/scans.txt",
        "mp3d_rooms/rooms.csv",
        *(f"r2r/R2R_{split}.json" for split in SPLITS),
        "reverie_bbox/bbox.json",
        "reverie_bbox/label_mpcat40.csv",
        "reverie_bbox/objects3d.csv",
        "world.json",
    }
    facts = json.loads((folder / "world.json").read_text())
    assert facts["simulated"] is True
    assert facts["seed"] == 1
    assert facts["parameters"]["paths"] == 30
    assert facts["scans"] == WORLD.scans()


def test_splits_are_of_seen_and_unseen_houses(splits):
    scans = {split: {entry["scan"] for entry in entries} for split, entries in splits.items()}
    assert scans["train"] == scans["val_seen"] == {f"seen{i:04d}" for i in range(4)}
    assert scans["val_unseen"] == {"unseen0000", "unseen0001"}
    assert Counter(entry["scan"] for entry in splits["train"]) == {f"seen{i:04d}": 30 for i in range(4)}
    assert {len([e for e in splits["val_seen"] if e["scan"] == scan]) for scan in scans["val_seen"]} == {4}
    entries = [entry for split in splits.values() for entry in split]
    assert len({entry["path_id"] for entry in entries}) == len(entries)
    assert len({(entry["scan"], tuple(entry["path"])) for entry in entries}) == len(entries)


def test_paths_are_the_shortest_of_their_graph(splits, graphs):
    for scan, graph in graphs.items():
        at = places(graph)
        lengths = np.linalg.norm(at[:, None] - at, axis=-1)
        moves = np.array([node["unobstructed"] for node in graph])
        shortest = dijkstra(csr_matrix(np.where(moves, lengths, 0)))
        index = {node["image_id"]: number for number, node in enumerate(graph)}
        for entry in (entry for split in splits.values() for entry in split if entry["scan"] == scan):
            path = [index[viewpoint] for viewpoint in entry["path"]]
            steps = list(pairwise(path))
            assert all(moves[a, b] for a, b in steps)
            assert 4 <= len(path) <= 7
            assert 5 <= entry["distance"] <= 30
            assert sum(lengths[a, b] for a, b in steps) == pytest.approx(shortest[path[0], path[-1]], abs=1e-4)
            assert entry["distance"] == pytest.approx(shortest[path[0], path[-1]], abs=0.006)
            assert 0 <= entry["heading"] < 6.284
            assert len(entry["instructions"]) == 3


def test_viewpoints_are_posed_upright(graphs):
    for graph in graphs.values():
        for node in graph:
            pose = np.reshape(node["pose"], (4, 4))
            assert np.allclose(pose[:3, :3] @ pose[:3, :3].T, np.eye(3), atol=1e-5)
            assert np.linalg.det(pose[:3, :3]) == pytest.approx(1, abs=1e-5)
            assert pose[3].tolist() == [0, 0, 0, 1]
            assert pose[:3, 1].tolist() == [0, 0, -1]  # the camera's y is down
            assert len(node["visible"]) == len(node["unobstructed"]) == len(graph)
            assert 1.4 <= node["height"] <= 1.6


def test_objects_have_the_places_that_their_rectangles_show(folder, graphs, boxes):
    """What no picture's edge cuts is projected to where its rectangle is, in every view."""
    where = {(row["scan"], row["object_id"]): row for row in rows(folder / "reverie_bbox" / "objects3d.csv")}
    assert _hits(graphs, boxes, where, margin=1.0) == 1.0
    assert len(where) > 200
    assert all(row["name"] in {o[row["object_id"]][0] for o in boxes[row["scan"]].values() if row["object_id"] in o}
               for row in where.values())  # fmt: skip


def _hits(graphs, boxes, where, margin):
    """The share of uncut rectangles that hold the projection of their object's place."""
    axes, hits = view_axes(), []
    for scan, graph in graphs.items():
        for node, camera in zip(graph, places(graph), strict=True):
            for number, (_, views, rectangles) in boxes[scan].get(node["image_id"], {}).items():
                row = where.get((scan, number))
                for view, (x, y, w, h) in zip(views, rectangles, strict=True) if row else ():
                    if x > 0 and y > 0 and x + w < 640 and y + h < 480:
                        right, up, ahead = axes[view] @ (np.array([float(row[a]) for a in "xyz"]) - camera)
                        u, v = 320 + FOCAL * right / ahead, 240 - FOCAL * up / ahead
                        hits.append(abs(u - x - w / 2) <= w / 2 + margin and abs(v - y - h / 2) <= h / 2 + margin)
    assert len(hits) > 100
    return np.mean(hits)


def test_tables_of_labels_and_rooms(folder, graphs, boxes):
    labels = rows(folder / "reverie_bbox" / "label_mpcat40.csv")
    counted = Counter(name for scan in boxes.values() for objects in scan.values() for name, _, _ in objects.values())
    assert {row["name"]: int(row["count"]) for row in labels} == counted
    rooms = rows(folder / "mp3d_rooms" / "rooms.csv")
    seen = [(scan, node["image_id"]) for scan, graph in graphs.items() for node in graph if scan.startswith("seen")]
    assert [(row["scan"], row["viewpoint"]) for row in rooms] == seen
    assert all(ROOM_LABELS[row["label_name_inferred"]] == int(row["label_id"]) for row in rooms)
    assert {row["split"] for row in rooms} == {"train"}


def test_labels_have_one_class():
    classes = {}
    for kind in OBJECTS.values():
        for name in kind.names:
            assert classes.setdefault(name, kind.mpcat40) == kind.mpcat40
        assert set(kind.anchors) <= set(OBJECTS)


def test_instructions_read_like_sentences(splits):
    for entry in splits["train"]:
        assert len(set(entry["instructions"])) > 1
        for text in entry["instructions"]:
            assert re.fullmatch(r"([A-Z][a-z ,-]*\. )+", text), text
    words = [len(text.split()) for entry in splits["train"] for text in entry["instructions"]]
    assert 15 < np.mean(words) < 40
    assert len({text for entry in splits["train"] for text in entry["instructions"]}) > 0.95 * len(words)


def test_houses_differ_in_what_they_have_and_how_it_is_called(boxes, splits):
    shares = {}
    for scan, viewpoints in boxes.items():
        count = Counter(name for objects in viewpoints.values() for name, _, _ in objects.values())
        shares[scan] = {name: number / count.total() for name, number in count.items()}
    scans = list(shares)
    for a, b in ((a, b) for a in scans for b in scans if a < b):
        names = set(shares[a]) | set(shares[b])
        assert sum(abs(shares[a].get(name, 0) - shares[b].get(name, 0)) for name in names) / 2 > 0.25
    ids = [viewpoint for viewpoints in boxes.values() for viewpoint in viewpoints]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.subprocesses
def test_the_same_seed_gives_the_same_bytes_in_another_process(folder, tmp_path):
    code = (
        "import sys; from pathlib import Path; from fedapps.tasks.vln.world.world import HouseWorld, write_houses; "
        f"write_houses(Path(sys.argv[1]), {WORLD!r}, seed=int(sys.argv[2]))"
    )
    for name, seed in (("again", 1), ("other", 2)):
        environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name), str(seed)], check=True, env=environment)
    assert digest(tmp_path / "again") == digest(folder)
    mine, other = digest(folder), digest(tmp_path / "other")
    assert {name for name in mine if mine[name] == other[name]} == {"mp3d_connectivity/connectivity/scans.txt"}


def test_a_house_does_not_depend_on_the_others(folder, tmp_path, splits, boxes):
    write_houses(tmp_path, HouseWorld(houses=1, unseen_houses=2, paths=30, seen_paths=4), seed=1)
    few = json.loads((tmp_path / "reverie_bbox" / "bbox.json").read_text())
    assert few == {scan: boxes[scan] for scan in ("seen0000", "unseen0000", "unseen0001")}
    unseen = json.loads((tmp_path / "r2r" / "R2R_val_unseen.json").read_text())
    assert [entry | {"path_id": 0} for entry in unseen] == [entry | {"path_id": 0} for entry in splits["val_unseen"]]


@pytest.fixture(scope="module")
def real():
    return Path(os.environ["FEDAPPS_DATA"]) / "vln"


def _unpack(file):
    return lzma.decompress(Path(file).read_bytes()).decode()


@real_data
def test_entries_have_the_keys_and_types_of_the_real_ones(real, splits, graphs, boxes):
    for split in SPLITS:
        theirs = json.loads(_unpack(real / "r2r" / f"R2R_{split}.json.xz"))
        assert _types(splits[split][0]) == _types(theirs[0])
        assert re.fullmatch("[0-9a-f]{32}", theirs[0]["path"][0])
        assert all(re.fullmatch("[0-9a-f]{32}", viewpoint) for entry in splits[split] for viewpoint in entry["path"])
    with tarfile.open(real / "mp3d_connectivity" / "connectivity.tar.xz") as archive:
        names = archive.getnames()
        theirs = json.load(archive.extractfile(next(name for name in names if name.endswith("_connectivity.json"))))
    assert all(_types(node) == _types(theirs[0]) for graph in graphs.values() for node in graph)
    assert "connectivity/scans.txt" in names
    theirs = json.loads(_unpack(real / "reverie_bbox" / "bbox.json.xz"))
    objects = [annotated for world in (theirs, boxes) for scan in world.values() for annotated in scan.values()]
    kinds = {tuple(type(part) for part in thing) for annotated in objects for thing in annotated.values()}
    assert kinds == {(str, list, list)}


def _types(entry):
    return {
        key: type(value[0]) if isinstance(value, list) and key != "pose" else type(value)
        for key, value in entry.items()
    }


@real_data
def test_tables_have_the_columns_and_classes_of_the_real_ones(real, folder):
    for name in ("label_mpcat40.csv", "objects3d.csv"):
        mine = (folder / "reverie_bbox" / name).read_text().splitlines()[0]
        file = real / "reverie_bbox" / name
        text = file.read_text() if file.exists() else _unpack(f"{file}.xz")
        assert text.splitlines()[0] == mine
    theirs = _unpack(real / "mp3d_rooms" / "rooms.csv.xz").splitlines()
    assert theirs[0] == (folder / "mp3d_rooms" / "rooms.csv").read_text().splitlines()[0]
    assert {(row["label_name_inferred"], int(row["label_id"])) for row in csv.DictReader(theirs)} == set(
        ROOM_LABELS.items()
    )
    classes = {row["name"]: row["mpcat40"] for row in rows(real / "reverie_bbox" / "label_mpcat40.csv")}
    for kind in OBJECTS.values():
        for name in kind.names:
            assert classes[name] == kind.mpcat40


@real_data
def test_the_views_are_those_of_the_real_rectangles(real):
    """Real objects that several viewpoints triangulate project into their real rectangles."""
    with tarfile.open(real / "mp3d_connectivity" / "connectivity.tar.xz") as archive:
        names = [name for name in archive.getnames() if name.endswith("_connectivity.json")][:15]
        graphs = {Path(name).stem.split("_")[0]: json.load(archive.extractfile(name)) for name in names}
    boxes = json.loads(_unpack(real / "reverie_bbox" / "bbox.json.xz"))
    table = csv.DictReader(_unpack(real / "reverie_bbox" / "objects3d.csv.xz").splitlines())
    where = {(row["scan"], row["object_id"]): row for row in table if float(row["median_residual_deg"]) < 2}
    assert _hits(graphs, boxes, where, margin=10.0) > 0.95


# Instructions of made-up houses tell paths apart.


@pytest.mark.slow
def test_reading_the_instruction_helps_to_find_the_goal():
    """Among a start's paths, that of the most similar text in another wording ends within 3 m of the goal."""
    read, other, blind = [], [], []
    for number in range(8):
        house = draw_house(f"house{number}", 1 + number % 2, seed=5)
        shortest = shortest_paths(house.graph)
        habits = draw_habits(generator(5, "habits", number))
        previous = None
        for place, path in enumerate(sample_paths(house, 8, generator(5, "paths", number))):
            told = _bigrams(_write(house, path, habits, "everything", 5, number, place))
            goals = _goals(shortest, path)
            scores = {}
            for goal, spots in goals.items():
                texts = [
                    _write(house, SampledPath(spots, 0.0, path.heading), habits, detail, 6, number, goal)
                    for detail in ("turns", "everything")
                ]
                scores[goal] = [
                    max(_alike(query, _bigrams(text)) for text in texts) for query in (told, previous or told)
                ]
            near = {goal: shortest.distance[goal, path.spots[-1]] < 3 for goal in goals}
            read.append(near[max(goals, key=lambda goal: scores[goal][0])])
            blind.append(np.mean(list(near.values())))
            if previous is not None:
                other.append(near[max(goals, key=lambda goal: scores[goal][1])])
            previous = told
    assert np.mean(read) > 0.6
    assert np.mean(blind) < 0.3
    assert np.mean(other) < 0.4  # the instruction of another path is no help


def _write(house, path, habits, detail, *key):
    return Annotator(habits, detail, generator(*key)).write(describe(house, path))


def _goals(shortest, path):
    paths = {goal: tuple(shortest.path(path.spots[0], goal)) for goal in range(len(shortest.distance))}
    return {
        goal: spots
        for goal, spots in paths.items()
        if 5 <= len(spots) <= 7 and shortest.distance[path.spots[0], goal] >= 5
    }


def _bigrams(text):
    words = re.findall("[a-z-]+", text.lower())
    return Counter(words) + Counter(pairwise(words))


def _alike(first, second):
    return 2 * (first & second).total() / (first.total() + second.total())
