"""The parts of a made-up street: the map, what rays meet, the sun, and UTM coordinates."""

from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from fedapps.tasks.vpr.world.city import draw_city, look, visit
from fedapps.tasks.vpr.world.network import Walls, draw_network, draw_poses, draw_routes
from fedapps.tasks.vpr.world.rendering import FAR, cast, render
from fedapps.tasks.vpr.world.styles import CONTINENTS, NAMES, Camera, Conditions, hashed, light
from fedapps.tasks.vpr.world.world import to_degrees
from hypothesis import given, settings
from hypothesis import strategies as st

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
