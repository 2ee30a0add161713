"""Positions, sequences and roles of images: cities apart, positives, selections, projection."""

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.images import ImageArray, ImageStore
from fedapps.tasks.vpr.places import EARTH_RADIUS, Track, build_places, projected, refuse_degrees
from hypothesis import given
from hypothesis import strategies as st


def small_places(positions, queries, cities=None, source=None):
    """A sequence for each image."""
    count = len(positions)
    tracks = [Track("" if cities is None else cities[i], f"s{i:03d}", bool(queries[i])) for i in range(count)]
    store = ImageStore(source or ImageArray(np.zeros((count, 2, 2), dtype=np.uint8)))
    return build_places(store, tracks, np.array(positions, dtype=float).reshape(count, 2), np.zeros(count))


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
    return build_places(store, tracks, np.asarray(position, dtype=float), np.zeros(len(position)))


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
