"""Recall of places, the exact search behind it, and mining of triplets."""

import numpy as np
import pytest
from fedapps.tasks.vpr import retrieval
from fedapps.tasks.vpr.retrieval import (
    Anywhere,
    Miner,
    NearestSequences,
    nearest_rows,
    recall,
    squared_distances,
    within,
)
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
    true = within(seen, places, 25.0)
    assert [rows.tolist() for rows in true] == [[0], [0], [3], []]
    # Query 1 at 12 finds 10, 20 and then 0.
    found = recall(queries, database, true, among=(1, 2, 3, 10))
    assert found == {1: 100 / 3, 2: 100 / 3, 3: 200 / 3, 10: 100.0}


def test_twenty_five_metres_are_near_enough():
    assert [len(rows) for rows in within(np.array([[15.0, 20.0], [15.0, 20.001]]), np.zeros((1, 2)), 25.0)] == [1, 0]


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
    monkeypatch.setattr("fedapps.tasks.vpr.retrieval._DISTANCES_AT_ONCE", 31)
    assert np.array_equal(nearest_rows(asked, database, 4), whole)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 999))
def test_recall_is_that_of_brute_force(queries, size, seed):
    generator = np.random.default_rng(seed)
    asked, database = on_grid(seed, queries, 2), on_grid(seed + 1, size, 2)
    seen, places = generator.uniform(0, 100, (queries, 2)), generator.uniform(0, 100, (size, 2))
    near = [[np.linalg.norm(place - at) <= 25 for place in places] for at in seen]
    counted = [row for row in range(queries) if any(near[row])]
    found = recall(asked, database, within(seen, places, 25.0))
    if not counted:
        assert found == {}
        return
    order = brute_force(asked, database, size)
    for n in (1, 5, 10):
        hits = [any(near[row][column] for column in order[row][:n]) for row in counted]
        assert found[n] == pytest.approx(100 * np.mean(hits))
    assert found[1] <= found[5] <= found[10]


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


def described(*numbers):
    return np.array(numbers, dtype=np.float32)[:, None]


def mine_all(miner, queries, database, pool=None, seed=0, negatives=5):
    pool = pool or Anywhere()
    rows = np.arange(len(miner.queries))
    drawn = pool.draw(miner, np.random.default_rng(seed))
    return drawn, miner.mine(rows, queries, database, pool=pool, drawn=drawn, negatives=negatives)


def along(*metres):
    return np.array([[x, 0.0] for x in metres])


def test_triplets_by_hand():
    """Query 0 at 0 m looks like 5, query 1 at 60 m has nothing within 10 m."""
    miner = Miner(along(0, 60), along(-9, 10, 11, 25, 26, 80, 200), np.arange(7))
    assert miner.usable.tolist() == [0]
    database = described(9.0, 4.0, 5.0, 5.0, 1.0, 6.0, 8.0)
    _, found = mine_all(miner, described(5.0, 5.0), database, negatives=2)
    # Of -9 and 10 m the latter looks alike more; 11 and 25 m are neither; from 26, 80 and 200 m those at 6 and 8.
    assert found.queries.tolist() == [0]
    assert found.positives.tolist() == [1]
    assert found.negatives.tolist() == [[5, 6]]
    assert found.distinct.tolist() == [2]


def test_few_negatives_are_repeated_in_order():
    miner = Miner(along(0), along(0, 30, 40), np.arange(3))
    _, found = mine_all(miner, described(0.0), described(0.0, 2.0, 1.0))
    assert found.negatives.tolist() == [[2, 1, 2, 1, 2]]
    assert found.distinct.tolist() == [2]
    assert found.mask.tolist() == [[True, True, False, False, False]]


@pytest.mark.parametrize(
    ("queries", "database"),
    [
        (along(), along(0, 50)),
        (along(0), along()),
        # no positive; no negative
        (along(0), along(11, 50)),
        (along(0), along(1, 25)),
    ],
)
def test_nodes_without_a_triplet(queries, database):
    miner = Miner(queries.reshape(-1, 2), database.reshape(-1, 2), np.zeros(len(database)))
    assert miner.usable.tolist() == []
    descriptors = np.zeros((2, 3), dtype=np.float32)
    for pool in (Anywhere(), NearestSequences(2, 3)):
        _, found = mine_all(miner, descriptors[: len(queries)], descriptors[: len(database)], pool)
        assert (len(found.queries), found.negatives.shape, found.mask.shape) == (0, (0, 5), (0, 5))


def test_a_pool_without_a_negative_leaves_the_query_out():
    miner = Miner(along(0), along(0, 5, 100), np.zeros(3))
    assert miner.usable.tolist() == [0]
    found = miner.mine(np.array([0]), described(0.0), described(0, 0, 0), pool=Anywhere(), drawn=np.array([0, 1]))
    assert len(found.queries) == 0


def brute_force_mining(miner, queries, database, drawn, allowed, negatives):
    """One triplet after the other, from the definitions."""
    triplets = []
    for row, at in enumerate(miner.queries):
        apart = [float(((point - queries[row]) ** 2).sum()) for point in database]
        metres = [np.linalg.norm(place - at) for place in miner.database]
        near = sorted((apart[i], i) for i in range(len(database)) if metres[i] <= 10)
        far = sorted((apart[i], i) for i in drawn if metres[i] > 25 and allowed(row, i))
        if near and far:
            best = [int(i) for _, i in far[:negatives]]
            repeated = (best * negatives)[:negatives]
            triplets.append((row, near[0][1], repeated, len(best)))
    return triplets


def as_list(found):
    rows = (found.queries, found.positives, found.negatives, found.distinct)
    return list(zip(*(array.tolist() for array in rows), strict=True))


def world(seed, queries, size, sequences, offset=0.0):
    generator = np.random.default_rng(seed)
    places = generator.uniform(0, 80, (queries + size, 2)) + offset
    looks = generator.integers(0, 4, (queries + size, 2)).astype(np.float32)
    miner = Miner(places[:queries], places[queries:], generator.integers(0, sequences, size))
    return miner, looks[:queries], looks[queries:]


SIZES = st.integers(0, 8), st.integers(1, 25), st.integers(1, 5)


@settings(deadline=None, max_examples=60)
@given(*SIZES, st.integers(1, 30), st.integers(1, 6), st.integers(0, 999), st.sampled_from([0.0, 5e5]))
def test_mining_is_that_of_brute_force(queries, size, sequences, pool, negatives, seed, offset):
    miner, asked, database = world(seed, queries, size, sequences, offset)
    drawn, found = mine_all(miner, asked, database, Anywhere(pool), seed, negatives)
    assert len(set(drawn.tolist())) == len(drawn) == min(pool, size)
    assert as_list(found) == brute_force_mining(miner, asked, database, drawn, lambda row, i: True, negatives)
    assert set(found.queries.tolist()) <= set(miner.usable.tolist())
    if pool >= size:
        assert found.queries.tolist() == miner.usable.tolist()


@settings(deadline=None, max_examples=60)
@given(*SIZES, st.integers(1, 5), st.integers(1, 4), st.integers(0, 999), st.sampled_from([0.0, 1e9]))
def test_mining_in_the_nearest_sequences(queries, size, sequences, nearest, images, seed, offset):
    miner, asked, database = world(seed, queries, size, sequences, offset)
    drawn, found = mine_all(miner, asked, database, NearestSequences(nearest, images), seed)
    names = sorted(set(miner.sequences.tolist()))
    for name in names:
        of_sequence = miner.sequences == name
        assert of_sequence[drawn].sum() == min(images, of_sequence.sum())

    def allowed(row, i):
        metres = np.linalg.norm(miner.database - miner.queries[row], axis=1)
        order = sorted(names, key=lambda name: metres[miner.sequences == name].min())
        return miner.sequences[i] in order[:nearest]

    assert as_list(found) == brute_force_mining(miner, asked, database, drawn, allowed, 5)


def test_mining_goes_block_by_block(monkeypatch):
    miner, asked, database = world(1, 20, 30, 4)
    for pool in (Anywhere(9), NearestSequences(2, 3)):
        _, whole = mine_all(miner, asked, database, pool)
        with monkeypatch.context() as patched:
            patched.setattr(retrieval, "_DISTANCES_AT_ONCE", 61)
            _, found = mine_all(miner, asked, database, pool)
        assert as_list(found) == as_list(whole)


@pytest.mark.parametrize("pool", [Anywhere(6), NearestSequences(2, 2)])
def test_only_what_is_wanted_is_read(pool):
    miner, asked, database = world(2, 12, 30, 5)
    rows = np.array([1, 4, 7])
    drawn = pool.draw(miner, np.random.default_rng(0))
    wanted = miner.wanted(rows, drawn)
    assert 6 <= len(wanted) < 30
    partly = np.full_like(database, np.nan)
    partly[wanted] = database[wanted]
    whole = miner.mine(rows, asked[rows], database, pool=pool, drawn=drawn)
    assert as_list(miner.mine(rows, asked[rows], partly, pool=pool, drawn=drawn)) == as_list(whole)
    assert set(whole.queries.tolist()) <= set(rows.tolist())


@pytest.mark.parametrize("pool", [Anywhere(10), NearestSequences(3, 2)])
def test_a_seed_tells_the_pool(pool):
    miner, _, _ = world(0, 1, 40, 5)
    draws = [pool.draw(miner, np.random.default_rng(seed)).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
