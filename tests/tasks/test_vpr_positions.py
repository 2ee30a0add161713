"""Degrees where metres are expected."""

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.images import ImageArray, ImageStore
from fedapps.tasks.vpr.places import Track, build_places, refuse_degrees
from hypothesis import given
from hypothesis import strategies as st


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
