"""Recall of places, and the exact search behind it."""

import numpy as np
import pytest
from fedapps.tasks.vpr.retrieval import Recall, nearest_rows, recall, squared_distances, true_within, within
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.base.errors import DivergedError


def on_grid(seed, count, width, levels=4):
    """Whole numbers, so that distances are exact and many are equal."""
    return np.random.default_rng(seed).integers(0, levels, (count, width)).astype(np.float32)


def brute_force(queries, database, count):
    """Rows in the order of (distance, row)."""
    rows = []
    for query in queries:
        apart = [(float(((query - point) ** 2).sum()), row) for row, point in enumerate(database)]
        rows.append([row for _, row in sorted(apart)[:count]])
    return rows


def test_recall_by_hand():
    """One number describes an image. Query 0 finds its place first, 1 third, 2 not at all, 3 has none."""
    database = np.array([[0.0], [10.0], [20.0], [30.0]], dtype=np.float32)
    places = np.array([[0.0, 0], [100, 0], [200, 0], [300, 0]])
    queries = np.array([[1.0], [12.0], [0.0], [0.0]], dtype=np.float32)
    seen = np.array([[0.0, 25], [0, -10], [300, 20], [150, 0]])
    true = true_within(seen, places)
    assert [rows.tolist() for rows in true] == [[0], [0], [3], []]
    # Query 1 at 12 finds 10, 20 and then 0.
    found = recall(queries, database, true, among=(1, 2, 3, 10))
    assert found == Recall({1: 100 / 3, 2: 100 / 3, 3: 200 / 3, 10: 100.0}, queries=3, without=1)


def test_twenty_five_metres_are_near_enough():
    assert [len(rows) for rows in true_within(np.array([[15.0, 20.0], [15.0, 20.001]]), np.zeros((1, 2)))] == [1, 0]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 9), st.integers(1, 30), st.integers(1, 3), st.integers(1, 12), st.integers(0, 999))
def test_search_is_exact_and_of_equals_takes_the_first(queries, size, width, count, seed):
    asked, database = on_grid(seed, queries, width), on_grid(seed + 1, size, width)
    found = nearest_rows(asked, database, count)
    assert found.shape == (queries, min(count, size))
    assert found.tolist() == brute_force(asked, database, count)


def test_search_goes_block_by_block(monkeypatch):
    asked, database = on_grid(0, 20, 3), on_grid(1, 15, 3)
    whole = nearest_rows(asked, database, 4)
    monkeypatch.setattr("fedapps.tasks.vpr.retrieval._BLOCK", 31)
    assert np.array_equal(nearest_rows(asked, database, 4), whole)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 999))
def test_recall_is_that_of_brute_force(queries, size, seed):
    generator = np.random.default_rng(seed)
    asked, database = on_grid(seed, queries, 2), on_grid(seed + 1, size, 2)
    seen, places = generator.uniform(0, 100, (queries, 2)), generator.uniform(0, 100, (size, 2))
    near = [[np.linalg.norm(place - at) <= 25 for place in places] for at in seen]
    counted = [row for row in range(queries) if any(near[row])]
    true = true_within(seen, places)
    if not counted:
        with pytest.raises(ValueError, match=r"none of .* queries shows the place"):
            recall(asked, database, true)
        return
    found = recall(asked, database, true)
    order = brute_force(asked, database, size)
    for n in (1, 5, 10):
        hits = [any(near[row][column] for column in order[row][:n]) for row in counted]
        assert found.percent[n] == pytest.approx(100 * np.mean(hits))
    assert (found.queries, found.without) == (len(counted), queries - len(counted))
    assert found.percent[1] <= found.percent[5] <= found.percent[10]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 6), st.integers(0, 12), st.floats(0, 50), st.integers(0, 999))
def test_within_is_that_of_brute_force(queries, size, radius, seed):
    asked, places = np.random.default_rng(seed).uniform(0, 60, (2, 12, 2))
    found = within(asked[:queries], places[:size], radius)
    for at, rows in zip(asked[:queries], found, strict=True):
        assert rows.tolist() == [row for row in range(size) if np.linalg.norm(places[row] - at) <= radius]


def test_distances_by_one_product():
    asked, database = np.random.default_rng(0).normal(size=(2, 9, 4))
    expected = ((asked[:, None] - database) ** 2).sum(axis=-1)
    np.testing.assert_allclose(squared_distances(asked, database), expected, atol=1e-12)
    assert (squared_distances(asked, asked) >= 0).all()


def test_descriptors_of_a_network_that_diverged():
    true = [np.array([0])]
    for queries, database in ((np.full((1, 2), np.nan), np.ones((1, 2))), (np.ones((1, 2)), np.full((1, 2), np.inf))):
        with pytest.raises(DivergedError, match="descriptors are not finite: has training diverged"):
            recall(queries, database, true)
