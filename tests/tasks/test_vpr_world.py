"""The files of a made-up world of streets: layout, places, and what its pictures have in common."""

import csv
import json
import re

import numpy as np
import pytest
from fedapps.tasks.vpr.world.world import MOST_CITIES, StreetWorld, write_streets
from PIL import Image

SIDES = ("query", "database")
WORLD = StreetWorld(cities=2, test_cities=1, kilometres=0.08, size=(48, 32), more_drives=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streets")
    write_streets(folder, WORLD, seed=1)
    return folder


@pytest.fixture(scope="module")
def cities(folder):
    return sorted(path.parent for path in folder.glob("*/*/query"))


def table(city, side, name):
    with (city / side / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def places(city, side):
    rows = table(city, side, "postprocessed")
    return np.array([(float(row["easting"]), float(row["northing"])) for row in rows])


def headings(city, side):
    return np.array([float(row["ca"]) for row in table(city, side, "raw")])


def pictures(city, side):
    """Small and without their mean and contrast: ``[N, P]`` of length one."""
    keys = [row["key"] for row in table(city, side, "raw")]
    all_of = [np.asarray(Image.open(city / side / "images" / f"{key}.jpg").resize((24, 16)), float) for key in keys]
    flat = np.stack([(picture - picture.mean((0, 1))).ravel() for picture in all_of])
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def test_the_layout_is_that_of_the_published_sequences(folder, cities):
    assert [path.relative_to(folder).as_posix() for path in cities] == [
        "test/ambalor",
        "train_val/aldmark",
        "train_val/altapina",
    ]
    headers = {
        "raw": ",key,lon,lat,ca,captured_at,pano",
        "postprocessed": ",key,easting,northing,unique_cluster,control_panel,night,view_direction",
        "seq_info": ",key,sequence_key,frame_number",
    }
    for city in cities:
        for side in SIDES:
            keys = [row["key"] for row in table(city, side, "raw")]
            assert {path.name for path in (city / side / "images").iterdir()} == {f"{key}.jpg" for key in keys}
            for name, header in headers.items():
                assert (city / side / f"{name}.csv").read_text().splitlines()[0] == header
                rows = table(city, side, name)
                assert [row["key"] for row in rows] == keys
                assert [row[""] for row in rows] == [str(i) for i in range(len(keys))]
            assert all(re.fullmatch(r"20\d\d-\d\d-\d\d", row["captured_at"]) for row in table(city, side, "raw"))
            processed = table(city, side, "postprocessed")
            assert {row["night"] for row in processed} | {row["control_panel"] for row in processed} <= {
                "True",
                "False",
            }
            assert Image.open(city / side / "images" / f"{keys[0]}.jpg").size == (48, 32)


def test_a_small_file_says_that_all_is_simulated(folder):
    facts = json.loads((folder / "world.json").read_text())
    assert facts["simulated"] is True
    assert facts["seed"] == 1
    assert facts["parameters"]["size"] == [48, 32]
    assert facts["cities"]["aldmark"] == {"continent": "europe", "part": "train_val"}
    assert facts["cities"]["ambalor"] == {"continent": "asia", "part": "test"}


def test_frames_follow_each_other_every_five_metres(cities):
    for city in cities:
        for side in SIDES:
            at, rows = places(city, side), table(city, side, "seq_info")
            steps = []
            for here, there in zip(range(len(rows) - 1), range(1, len(rows)), strict=True):
                if rows[here]["sequence_key"] == rows[there]["sequence_key"]:
                    assert int(rows[there]["frame_number"]) == int(rows[here]["frame_number"]) + 1
                    steps.append(np.linalg.norm(at[there] - at[here]))
            assert 4.5 < np.mean(steps) < 5.5
            assert np.max(steps) < 11


def test_every_query_was_seen_before_looking_the_same_way_and_most_of_the_database_is_elsewhere(cities):
    for city in cities:
        apart = np.linalg.norm(places(city, "query")[:, None] - places(city, "database"), axis=2)
        turn = np.abs((headings(city, "query")[:, None] - headings(city, "database") + 180) % 360 - 180)
        assert ((apart < 10) & (turn < 45)).any(axis=1).all()
        assert ((apart > 25).sum(axis=1) > 10).all()


def test_queries_are_younger_and_every_place_has_two_sequences_of_each(cities):
    for city in cities:
        seen = {side: table(city, side, "raw") for side in SIDES}
        assert max(row["captured_at"] for row in seen["database"]) < min(row["captured_at"] for row in seen["query"])
        for side in seen:
            sequences = {}
            rows = zip(table(city, side, "postprocessed"), table(city, side, "seq_info"), strict=True)
            for row, info in rows:
                sequences.setdefault(row["unique_cluster"], set()).add(info["sequence_key"])
            assert min(len(of_place) for of_place in sequences.values()) >= 2


def test_pictures_of_a_place_are_more_alike_than_those_of_two_places_seen_on_the_same_days(cities):
    gains = []
    for city in cities:
        alike = pictures(city, "query") @ pictures(city, "database").T
        assert alike.max() < 0.999
        apart = np.linalg.norm(places(city, "query")[:, None] - places(city, "database"), axis=2)
        turn = np.abs((headings(city, "query")[:, None] - headings(city, "database") + 180) % 360 - 180)
        same, other = (apart < 5) & (turn < 30), apart > 25
        days = [np.array([row["sequence_key"] for row in table(city, side, "seq_info")]) for side in SIDES]
        for query in np.unique(days[0]):
            for database in np.unique(days[1]):
                pair = (days[0] == query)[:, None] & (days[1] == database)
                if (pair & same).any() and (pair & other).any():
                    gains.append(alike[pair & same].mean() - alike[pair & other].mean())
    assert len(gains) > 10
    assert np.mean(gains) > 0.02
    assert np.mean(np.array(gains) > 0) > 0.7


def test_cities_come_from_the_continents_in_turn():
    names = StreetWorld(cities=5, test_cities=2).names()
    assert [continent for continent, _ in names.values()] == [
        *("europe", "america", "asia", "oceania"),
        *("europe", "america", "asia"),
    ]
    assert [part for _, part in names.values()] == ["train_val"] * 5 + ["test"] * 2
    assert len(StreetWorld(cities=MOST_CITIES - 2).names()) == MOST_CITIES


def test_more_nodes_need_more_street():
    assert StreetWorld(cities=10).enough_for(100).kilometres == pytest.approx(2.4)
    assert StreetWorld(cities=10).enough_for(100, metres=100).kilometres == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cities": 31}, "cities + test_cities = 31 + 2: must be at most 32"),
        ({"size": (8, 64)}, "size = (8, 64): must be at least 16 pixels"),
    ],
)
def test_parameters_that_cannot_be(wrong, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        StreetWorld(**wrong)
