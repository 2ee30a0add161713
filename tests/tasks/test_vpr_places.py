"""Positions, sequences and roles of images: cities apart, positives, selections, projection."""

from dataclasses import replace

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.evaluation import MOST, NEAREST, SHOWN, CommonSet, match_traces, place_traces
from fedapps.tasks.vpr.images import ImageArray, ImageStore
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.places import EARTH_RADIUS, Track, build_places, projected, refuse_degrees
from fedapps.tasks.vpr.task import VprTask
from fedapps.tasks.vpr.training_set import FeatureMapCache, ImageSet, NetworkInputs
from hypothesis import given
from hypothesis import strategies as st
from striped_places import SIZE, use_tiny_network, write_places
from torch import nn

from fedapps.base.seeding import torch_seed


def small_places(positions, queries, cities=None, source=None):
    """A sequence for each image."""
    count = len(positions)
    tracks = [Track("" if cities is None else cities[i], f"s{i:03d}", bool(queries[i])) for i in range(count)]
    store = ImageStore(source or ImageArray(np.zeros((count, 2, 2), dtype=np.uint8)))
    return build_places(store, tracks, np.array(positions, dtype=float).reshape(count, 2))


def test_cities_never_touch_however_their_positions_are_counted():
    places = small_places([(0, 0), (5, 0), (0, 0), (9, 1)], [True, False, False, True], ["a", "a", "b", "b"])
    moved = places.position_apart
    distances = np.linalg.norm(moved[:, None] - moved[None], axis=2)
    assert distances[0, 1] == 5
    assert distances[2, 3] == pytest.approx(np.sqrt(82))
    assert distances[:2, 2:].min() >= 1e6
    np.testing.assert_array_equal(places.position[:, 0], [0, 5, 0, 9])


@given(
    st.lists(
        st.tuples(st.integers(-20, 20), st.integers(-20, 20), st.booleans(), st.sampled_from(["a", "b"])), min_size=1
    ),
    st.sampled_from([0.0, 3.0, 10.0]),
)
def test_positives_are_those_of_a_search_through_all_pairs(rows, radius):
    places = small_places([row[:2] for row in rows], [row[2] for row in rows], [row[3] for row in rows])
    expected = [
        i
        for i, (x, y, query, city) in enumerate(rows)
        if query
        and any(
            not other[2] and other[3] == city and (x - other[0]) ** 2 + (y - other[1]) ** 2 <= radius**2
            for other in rows
        )
    ]
    assert places.queries_with_positive(radius).tolist() == expected


def test_a_selection_keeps_order_and_sequences():
    places = small_places([(0, 0), (1, 0), (2, 0)], [True, False, True])
    chosen = places.select(np.array([2, 0]))
    assert len(chosen) == 2
    assert chosen.tracks is places.tracks
    assert chosen.store is places.store
    np.testing.assert_array_equal(chosen.position[:, 0], [2, 0])
    np.testing.assert_array_equal(chosen.present, [0, 2])
    np.testing.assert_array_equal(places.of_tracks([2, 1]).position[:, 0], [1, 2])
    assert len(places.of_tracks([])) == 0
    for tracks in ([], [0], [1]):
        assert places.of_tracks(tracks).queries_with_positive(1.0).tolist() == []


def test_degrees_become_metres():
    """At 60 degrees of latitude a degree of longitude is half as long as one of latitude."""
    degree = EARTH_RADIUS * np.pi / 180
    metres = projected(np.array([10.0, 10.002, 10.001]), np.array([60.0, 60.0, 60.0]))
    np.testing.assert_allclose(metres / degree, [[-0.0005, 0], [0.0005, 0], [0, 0]], atol=1e-9)
    metres = projected(np.array([179.999, -179.999]), np.array([-0.001, 0.001]))
    np.testing.assert_allclose(metres / degree, [[-0.001, -0.001], [0.001, 0.001]], atol=1e-9)


@given(st.floats(-60, 60), st.floats(-180, 180), st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4))
def test_distances_within_a_city_are_those_on_the_globe(lat0, lon0, steps):
    lon = lon0 + np.array(steps[:2])
    lat = lat0 + np.array(steps[2:])
    one, other = projected((lon + 180) % 360 - 180, lat)
    a, b, d = np.deg2rad(lat[0]), np.deg2rad(lat[1]), np.deg2rad(lon[1] - lon[0])
    haversine = np.sin((b - a) / 2) ** 2 + np.cos(a) * np.cos(b) * np.sin(d / 2) ** 2
    globe = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(haversine))
    assert np.linalg.norm(one - other) == pytest.approx(globe, rel=2e-3, abs=1e-3)


def points_at(position, cities=None):
    tracks = [Track("" if cities is None else cities[row], "s", True) for row in range(len(position))]
    store = ImageStore(ImageArray(np.zeros((len(position), 2, 2), dtype=np.uint8)))
    return build_places(store, tracks, np.asarray(position, dtype=float))


steps = st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))


@given(st.floats(-179, 179), st.floats(-80, 80), st.lists(steps, min_size=2, max_size=9, unique=True))
def test_cities_in_degrees_are_told_from_maps_in_metres(lon, lat, walk):
    walk = np.array(walk)
    world, metres = walk + np.array([lon, lat]), 111_000 * walk
    if np.abs(world.mean(axis=0)).max() > 1 and np.ptp(world, axis=0).max() > 0:
        with pytest.raises(DataError, match="looks like degrees"):
            refuse_degrees(points_at(world), 25.0, "table", "advice")
    refuse_degrees(points_at(walk), 25.0, "table", "a map about its own origin")
    if np.ptp(metres, axis=0).max() >= 1:
        refuse_degrees(points_at(metres + np.array([lon, lat])), 25.0, "table", "a map of a metre")


def test_small_maps_in_metres_are_no_degrees():
    desk = [(40.0, 20.0), (40.5, 20.0)]
    refuse_degrees(points_at(desk), 0.4, "table", "farther than negatives are")
    refuse_degrees(points_at([(40.0, 20.0)] * 3), 25.0, "table", "one place only")
    refuse_degrees(points_at([*desk, (45.0, 20.0), (46.0, 20.0)], "aabb"), 25.0, "table", "one city is wide enough")
    with pytest.raises(DataError, match=r"values from 40 to 40\.5 and from 20 to 20, within 0\.5 in a city"):
        refuse_degrees(points_at(desk), 25.0, "table", "advice")


# What a node of the task "vpr" leaves behind to look at.


#: City, east, north, whether a query, and which of the four images of the database it is like: nearest descriptors
#: are those with the largest weights. The last query has no image within 25 m.
PICTURES = [
    ("a", 0.0, 0.0, True, (0.9, 0.3, 0.1, 0.5)),
    ("a", 1000.0, 0.0, True, (0.5, 0.9, 0.3, 0.1)),
    ("b", 0.0, 0.0, True, (0.5, 0.2, 0.1, 0.9)),
    ("b", 0.0, 500.0, True, (1.0, 0.0, 0.0, 0.0)),
    ("a", 12.0, 0.0, False, (1.0, 0.0, 0.0, 0.0)),
    ("a", 100.0, 0.0, False, (0.0, 1.0, 0.0, 0.0)),
    ("a", 1000.0, 25.0, False, (0.0, 0.0, 1.0, 0.0)),
    ("b", 0.0, 20.0, False, (0.0, 0.0, 0.0, 1.0)),
]


def places_of(rows, shape=(24, 200)):
    """Picture i has the gray 10 i everywhere."""
    grays = np.arange(len(rows), dtype=np.uint8)[:, None, None] * 10
    return build_places(
        ImageStore(ImageArray(np.broadcast_to(grays, (len(rows), *shape)).copy())),
        [Track(city, "drive", query) for city, _, _, query, *_ in rows],
        np.array([row[1:3] for row in rows]),
    )


def common_of(rows, monkeypatch, shape=(24, 200)):
    described = np.array([row[4] for row in rows], dtype=np.float32)
    monkeypatch.setattr(NetworkInputs, "describe", lambda inputs, chosen: described[chosen])
    return CommonSet.of(ImageSet("common test", places_of(rows, shape), shape, FeatureMapCache(0)), 25.0)


def test_queries_with_their_matches(monkeypatch):
    found = match_traces(nn.Linear(1, 1), common_of(PICTURES, monkeypatch), 25.0)
    assert (found["matches.queries"], found["matches.radius"]) == (3, 25.0)
    assert found["matches.asked"][:, 0, 0, 0].tolist() == [0, 10, 20]
    assert found["matches.found"][:, :, 0, 0, 0].tolist() == [[40, 70, 50], [50, 40, 60], [70, 40, 50]]
    np.testing.assert_allclose(found["matches.metres"], [[12, np.inf, 100], [900, 988, 25], [20, np.inf, np.inf]])
    assert found["matches.right"].tolist() == [[True, False, False], [False, False, True], [True, False, False]]


def test_pictures_are_small_and_keep_the_proportions_of_the_network(monkeypatch):
    found = match_traces(nn.Linear(1, 1), common_of(PICTURES, monkeypatch), 25.0)
    assert found["matches.asked"].shape == (3, 12, 96, 3)
    assert found["matches.found"].shape == (3, 3, 12, 96, 3)
    assert found["matches.found"].dtype == np.uint8
    small = match_traces(nn.Linear(1, 1), common_of(PICTURES, monkeypatch, (32, 64)), 25.0)
    assert small["matches.asked"].shape == (3, 32, 64, 3)


def test_a_small_database_has_fewer_matches(monkeypatch):
    found = match_traces(nn.Linear(1, 1), common_of(PICTURES[:5], monkeypatch), 25.0)
    assert found["matches.right"].tolist() == [[True]]


def test_no_query_that_can_be_found_no_matches(monkeypatch):
    assert match_traces(nn.Linear(1, 1), common_of(PICTURES[3:], monkeypatch), 25.0) == {}
    assert match_traces(nn.Linear(1, 1), common_of(PICTURES[:4], monkeypatch), 25.0) == {}


@given(st.lists(st.booleans(), max_size=60))
def test_queries_are_spaced_evenly_over_those_that_can_be_found(findable):
    common = CommonSet(images=None, true_rows=[np.arange(can) for can in findable])
    shown, places = common.shown, np.flatnonzero(findable)
    assert len(shown) == min(SHOWN, len(places))
    assert set(shown) <= set(places)
    gaps = np.diff(np.searchsorted(places, shown))
    assert gaps.size == 0 or 1 <= gaps.min() <= gaps.max() <= gaps.min() + 1


def test_of_thirteen_queries_every_other_is_shown():
    common = CommonSet(images=None, true_rows=[np.arange(1)] * 13)
    assert common.shown.tolist() == [1, 3, 5, 7, 9, 11]


def test_positions_with_their_cities():
    places = places_of(PICTURES).select(np.array([7, 0, 1]))
    found = place_traces("places", places)
    assert found["places.cities"].tobytes().decode() == "a\nb"
    assert found["places.city"].tolist() == [1, 0, 0]
    assert found["places.position"].tolist() == [[0, 20], [0, 0], [1000, 0]]


def test_of_many_positions_some_are_left_behind():
    places = places_of([("Zürich", float(east), 0.0, east % 2 == 0) for east in range(1200)], (2, 2))
    found = place_traces("common", places)
    assert found["common.cities"].tobytes().decode() == "Zürich"
    east = found["common.position"][:, 0]
    assert (len(east), east[0], east[-1]) == (MOST, 0, 1199)
    assert set(np.diff(east)) <= {3, 4}


# -- through the task --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=3, spots=6)
    return folder


@pytest.fixture
def task(monkeypatch):
    use_tiny_network(monkeypatch)
    return VprTask(Options(backbone="tiny@body", height=SIZE[0], width=SIZE[1], radius=1000.0, test_queries=4))


def evaluated(task, data, *, final=True):
    with torch_seed(0):
        model = task.build_model().eval()
    return task.evaluate(model, data, seed=0, final=final)


def test_traces_are_of_the_last_evaluation_only(task, folder):
    node = task.load_node(folder, 0, 2)
    assert evaluated(task, node, final=False).traces == {}
    assert {name.split(".")[0] for name in evaluated(task, node).traces} == {"places", "common", "matches"}


def test_with_every_query_shown_the_matches_are_the_recall(task, folder):
    found = evaluated(task, task.load_node(folder, 0, 2))
    right = found.traces["matches.right"]
    assert right.shape == (4, NEAREST)
    assert right[:, 0].mean() == found.metrics["test.recall_at_1"]
    assert found.traces["matches.right"].tolist() == (found.traces["matches.metres"] <= 25).tolist()


def test_nodes_with_the_same_model_show_the_same_matches_and_places_of_their_own(task, folder):
    one, other = (evaluated(task, task.load_node(folder, partition, 2)).traces for partition in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one if not name.startswith("places."))
    assert one["places.cities"].tobytes() == b"city-0"
    assert other["places.cities"].tobytes() == b"city-1"
    assert one["common.cities"].tobytes() == b"city-2"
    assert len(one["places.position"]) == 24


def test_models_of_many_clusters_are_each_tested_once(task, folder, monkeypatch):
    """Nodes of different clusters take turns, each with its cluster's model and the shared one."""
    common = task.load_node(folder, 0, 2).extra["common"]["test"]
    models = []
    for seed in range(12):
        with torch_seed(seed):
            models.append(task.build_model().eval())
    first = [common.tested(model).recalls for model in models]
    monkeypatch.setattr(NetworkInputs, "describe", None)
    assert [common.tested(model).recalls for model in models] == first


def test_a_node_without_a_common_test_leaves_its_places(folder, task):
    own = VprTask(replace(task.options, test_queries=0))
    assert set(evaluated(own, own.load_own(folder)).traces) == {"places.cities", "places.city", "places.position"}
