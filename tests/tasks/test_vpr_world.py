"""The files of a made-up world of streets: layout, places, and what its pictures have in common."""

import csv
import json
import re
from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from fedapps.tasks.vpr.world.city import draw_city, look, visit
from fedapps.tasks.vpr.world.network import Walls, draw_network, draw_poses, draw_routes
from fedapps.tasks.vpr.world.rendering import FAR, cast, render
from fedapps.tasks.vpr.world.styles import CONTINENTS, NAMES, Camera, Conditions, hashed, light
from fedapps.tasks.vpr.world.world import MOST_CITIES, StreetWorld, to_degrees, write_streets
from hypothesis import given, settings
from hypothesis import strategies as st
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


# The parts of a made-up street: the map, what rays meet, the sun, and UTM coordinates.


CAMERA = Camera(90.0, 1.5, 0.0, 0.0, 1.0, (1.0, 1.0, 1.0), 1.0, 0.0, 0.0, 0.0)
NOON = Conditions(date(2015, 7, 1), "summer", 12.5, "clear", 0.5, CAMERA)


@pytest.fixture(scope="module")
def city():
    return draw_city("aldmark", "europe", 150, 3)


@given(st.sampled_from(sorted(CONTINENTS)), st.floats(30, 3000), st.integers(0, 999))
@settings(max_examples=15, deadline=None)
def test_routes_run_once_through_streets_that_hang_together(continent, metres, seed):
    rng = np.random.default_rng(seed)
    network = draw_network(CONTINENTS[continent], metres, rng)
    lengths, driven = network.lengths, network.driven
    assert metres <= (lengths * driven).sum() < metres + lengths.max()
    routes = draw_routes(network, 120, rng)
    runs = [frozenset(pair) for route in routes for pair in pairwise(route)]
    assert sorted(map(sorted, runs)) == sorted(sorted(edge) for edge in network.edges[driven].tolist())
    reached, waiting = set(runs.pop()), True
    while waiting:
        waiting = [run for run in runs if run & reached]
        runs = [run for run in runs if not run & reached]
        reached.update(*waiting)
    assert not runs


def test_a_drive_keeps_to_its_lane_and_looks_ahead():
    poses = draw_poses(np.array([[0.0, 0.0], [0.0, 100.0]]), 2.0, 5.0, np.random.default_rng(0))
    assert len(poses.position) in (19, 20)
    np.testing.assert_allclose(np.diff(poses.position[:, 1]), 5.0, atol=1.5)
    np.testing.assert_allclose(poses.position[:, 0], 2.0, atol=1.8)  # northwards: the right is east
    np.testing.assert_allclose(poses.heading, 0.0, atol=0.15)


def test_rays_meet_the_wall_ahead_and_not_one_seen_from_behind(city):
    view = look(visit(city, NOON, 0), np.zeros(2), 0.0, (4, 4))
    single = [np.array([pair], np.float32) for pair in ((-8.0, 10.0), (8.0, 10.0))]
    number = np.zeros(1, int)
    hits = cast(city.houses, Walls(*single, number, np.ones(1)), view, 1.5)
    np.testing.assert_allclose(hits.depth[:4], [10.0] * 4, rtol=1e-5)
    np.testing.assert_allclose(hits.along[:4], [0.5, 5.5, 10.5, 15.5], rtol=1e-5)  # slopes -0.75, -0.25, 0.25, 0.75
    np.testing.assert_allclose(hits.facing[:4], 1 / np.hypot(1, [0.75, 0.25, 0.25, 0.75]), rtol=1e-5)
    np.testing.assert_allclose(hits.normal[:4], [[0, -1]] * 4, atol=1e-6)
    behind = cast(city.houses, Walls(*single[::-1], number, np.ones(1)), view, 1.5)
    assert (behind.depth == FAR).all()


def test_a_picture_is_sky_above_and_street_below(city):
    node = city.network.nodes[city.network.edges[city.network.driven][0]]
    along = node[1] - node[0]
    picture = render(
        visit(city, NOON, 0), node.mean(axis=0), float(np.arctan2(*along)), (96, 64), np.random.default_rng(0)
    )
    assert picture.shape == (64, 96, 3)
    assert picture.dtype == np.uint8
    top, bottom = picture[0, 44:52].astype(float).mean(0), picture[60:, 40:56].astype(float).mean((0, 1))
    assert top[2] > top[0] + 20  # blue
    assert abs(bottom[2] - bottom[0]) < 40  # grey
    assert picture.std() > 20


def test_the_sun_is_high_at_noon_on_the_side_of_the_equator_and_away_at_night():
    north, south = light(NOON, southern=False), light(NOON, southern=True)
    assert north.towards[1] < 0 < south.towards[1]
    assert np.linalg.norm(north.towards) == pytest.approx(1)
    night = Conditions(NOON.day, "summer", 23.0, "clear", 0.5, CAMERA)
    assert night.night
    assert not light(night, southern=False).sun.any()


def test_utm_of_a_known_tower():
    longitude, latitude = to_degrees(np.array([630084.0]), np.array([4833438.0]), 17, southern=False)
    np.testing.assert_allclose((longitude[0], latitude[0]), (-79.387139, 43.642567), atol=1e-5)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_a_brick_has_its_shade_wherever_in_it_one_looks(column, row):
    assert 0 <= hashed(column, row) < 1
    assert hashed(column + 0.9, row + 0.2) == hashed(column, row)


def test_names_are_all_different():
    names = [name for group in NAMES.values() for name in group]
    assert NAMES.keys() == CONTINENTS.keys()
    assert len(set(names)) == len(names)
