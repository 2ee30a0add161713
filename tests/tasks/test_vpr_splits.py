"""Who gets which sequences."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.vpr.images import ImageArray, ImageStore
from fedapps.tasks.vpr.nodes import clients_of
from fedapps.tasks.vpr.options import Options
from fedapps.tasks.vpr.places import Track, build_places
from fedapps.tasks.vpr.readers import read_indoor, read_nordland
from fedapps.tasks.vpr.splits import (
    Client,
    clustering_split,
    group_split,
    hold_out,
    is_valid,
    k_means,
    proximity_split,
    random_split,
    track_features,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

REAL = pytest.mark.skipif("FEDAPPS_DATA" not in os.environ, reason="FEDAPPS_DATA names no folder of real data")


def world(sequences):
    """ImageSet of sequences ``(city, query, group, positions)``, an image for each position."""
    tracks, positions = [], []
    for number, (city, query, group, points) in enumerate(sequences):
        continent = "asia" if city < "m" else "europe"
        tracks += [Track(city, f"s{number:03d}", query, continent, group)] * len(points)
        positions += points
    store = ImageStore(ImageArray(np.zeros((len(tracks), 2, 2), dtype=np.uint8)))
    return build_places(store, tracks, np.array(positions, dtype=float))


def block(city, east, group="", count=2):
    """A valid client: ``count`` sequences of each role, 5 m long, around ``east`` metres."""
    return [
        (city, query, group, [(east + 10 * number, 0.0), (east + 10 * number + 5, 0.0)])
        for query in (True, False)
        for number in range(count)
    ]


points = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda point: (float(point[0]), float(point[1])))
worlds = st.lists(
    st.tuples(
        st.sampled_from(["goa", "rome"]),
        st.booleans(),
        st.sampled_from(["a", "b"]),
        st.lists(points, min_size=1, max_size=3),
    ),
    min_size=4,
    max_size=24,
).map(world)


def clients_or_none(split, *arguments):
    """The clients, none where the split says that there is none."""
    try:
        return split(*arguments)
    except DataError as error:
        if not str(error).startswith("the split gives no client"):
            raise
        return ()


def roles(places, client):
    return sorted((places.tracks[track].city, places.tracks[track].query) for track in client.tracks)


def test_two_neighbourhoods_and_what_is_left_by_hand():
    """Goa has two neighbourhoods of 15 m, 1 km apart, and a lonely query; Rome has too few of the database."""
    places = world(
        block("goa", 0.0)
        + block("goa", 1000.0)
        + [("goa", True, "", [(5000.0, 0.0)]), ("goa", False, "", [(9000.0, 0.0)])]
        + [("rome", True, "", [(0.0, 0.0)]), ("rome", True, "", [(1.0, 0.0)]), ("rome", False, "", [(2.0, 0.0)])]
    )
    for seed in range(5):
        clients = proximity_split(places, 100.0, seed)
        assert [client.key for client in clients] == ["goa-00", "goa-01"]
        assert {(client.city, client.continent) for client in clients} == {("goa", "asia")}
        east = sorted(sorted(client.places(places).position[:, 0].tolist()) for client in clients)
        near = [0, 0, 5, 5, 10, 10, 15, 15]
        assert east == [near, [1000 + x for x in near]]
        assert clients == proximity_split(places, 100.0, seed)
    with pytest.raises(DataError, match=r"gives no client: .* \(sequences within 1 m of a query\)"):
        proximity_split(places, 1.0, 0)


def test_the_sequences_of_an_invalid_group_are_gone():
    """The query in the west, drawn first, takes the database with it; one in the east makes a client of the rest."""
    database = [("goa", False, "", [(10.0, 0.0)])] * 2
    places = world([("goa", True, "", [(x, 0.0)]) for x in (0.0, 20.0, 21.0)] + database)
    outcomes = {tuple(client.tracks for client in clients_or_none(proximity_split, places, 15.0, s)) for s in range(30)}
    assert outcomes == {(), ((1, 2, 3, 4),)}


def test_a_radius_larger_than_all_cities_gives_one_client_each():
    places = world(block("goa", 0.0, count=3) + block("rome", 5e5, count=4))
    clients = proximity_split(places, 1e6, 3)
    assert [client.key for client in clients] == ["goa-00", "rome-00"]
    assert sum(len(client.tracks) for client in clients) == len(places.tracks)


@given(worlds, st.sampled_from([0.0, 10.0, 30.0, 100.0]), st.integers(0, 3))
def test_proximity_clients_are_valid_near_one_of_their_queries_and_share_nothing(places, radius, seed):
    clients = clients_or_none(proximity_split, places, radius, seed)
    taken = [track for client in clients for track in client.tracks]
    assert len(taken) == len(set(taken))
    for client in clients:
        assert is_valid(places, client.tracks)
        assert {places.tracks[track].city for track in client.tracks} == {client.city}
        own = client.places(places)
        apart = np.linalg.norm(own.position[own.queries, None] - own.position, axis=2)
        nearest = [apart[:, own.track == track].min(axis=1) for track in client.tracks]
        assert np.max(nearest, axis=0).min() <= radius + 1e-9
    assert len({client.key for client in clients}) == len(clients)


@given(worlds, st.integers(0, 3))
def test_a_huge_radius_takes_every_city_that_is_valid(places, seed):
    clients = clients_or_none(proximity_split, places, 1e6, seed)
    by_city = {client.city: client.tracks for client in clients}
    for city in places.cities:
        own = tuple(track for track in places.present.tolist() if places.tracks[track].city == city)
        assert by_city.get(city) == (own if is_valid(places, own) else None)


def test_random_deals_by_hand():
    """5 queries and 2 of the database in Goa, 2 and 3 in Rome, 3 clients: 1 of each, and 2 + 0 + 0 + 0 go round."""
    places = world(
        [("goa", True, "", [(0.0, 0.0)])] * 5
        + [("goa", False, "", [(0.0, 0.0)])] * 2
        + [("rome", True, "", [(0.0, 0.0)])] * 2
        + [("rome", False, "", [(0.0, 0.0)])] * 3
    )
    clients = random_split(places, 3, 0)
    assert [client.key for client in clients] == ["client-000", "client-001", "client-002"]
    assert {(client.city, client.continent) for client in clients} == {("", "")}
    every = [("goa", False), ("goa", True), ("rome", False), ("rome", True)]
    assert sorted(roles(places, client) for client in clients) == sorted(
        [every, sorted([*every, ("goa", True)]), sorted([*every, ("goa", True)])]
    )
    used = np.bincount([track for client in clients for track in client.tracks], minlength=len(places.tracks))
    by_role = {}
    for track, count in zip(places.tracks, used.tolist(), strict=True):
        by_role.setdefault((track.city, track.query), []).append(count)
    assert {role: sorted(counts) for role, counts in by_role.items()} == {
        ("goa", True): [1] * 5,
        ("goa", False): [1, 2],
        ("rome", True): [1, 2],
        ("rome", False): [1] * 3,
    }


def test_in_a_single_city_random_clients_get_two_of_each():
    places = world([("goa", query, "", [(0.0, 0.0)]) for query in (True, False) for _ in range(3)])
    clients = random_split(places, 4, 0)
    assert [roles(places, client) for client in clients] == [[("goa", False)] * 2 + [("goa", True)] * 2] * 4
    with pytest.raises(DataError, match="goa has 1 sequence of the database; a client needs 2"):
        random_split(places.of_tracks([0, 1, 2, 3]), 4, 0)


@given(worlds, st.integers(1, 7), st.integers(0, 3))
def test_random_clients_are_valid_and_alike(places, num_clients, seed):
    try:
        clients = random_split(places, num_clients, seed)
    except DataError as error:
        assume("a client needs 2" in str(error) or "no client" in str(error))
        return
    assert len(clients) == num_clients
    assert {track for client in clients for track in client.tracks} == set(places.present.tolist())
    sizes = [len(client.tracks) for client in clients]
    assert max(sizes) - min(sizes) <= 1
    roles_there = {(places.tracks[track].city, places.tracks[track].query) for track in places.present}
    for client in clients:
        assert is_valid(places, client.tracks)
        assert len(set(client.tracks)) == len(client.tracks)
        assert {(places.tracks[track].city, places.tracks[track].query) for track in client.tracks} == roles_there
    assert clients == random_split(places, num_clients, seed)


def test_clusters_are_those_of_the_features():
    """Sequences that look alike lie far apart; those of the other look are a client of their own."""
    places = world(block("goa", 0.0) + block("goa", 1e5) + block("rome", 0.0))
    features = np.array([[0.0], [9.0]] * 4 + [[0.0]] * 4)
    clients = clustering_split(places, features, {"goa": 2}, 0)
    assert {client.tracks for client in clients} == {(0, 2, 4, 6), (1, 3, 5, 7)}
    assert [client.key for client in clients] == ["goa-00", "goa-01"]
    with pytest.raises(DataError, match="no client"):
        clustering_split(places, features, {}, 0)


@given(worlds, st.integers(1, 5), st.integers(0, 3))
def test_clusters_are_valid_and_share_nothing(places, k, seed):
    features = np.random.default_rng(seed).normal(size=(len(places.tracks), 2))
    clients = clients_or_none(clustering_split, places, features, {"goa": k, "rome": 1}, seed)
    taken = [track for client in clients for track in client.tracks]
    assert len(taken) == len(set(taken))
    assert all(is_valid(places, client.tracks) for client in clients)
    cities = [client.city for client in clients]
    assert cities.count("goa") <= k
    assert cities.count("rome") <= 1


@settings(max_examples=30)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 5))
def test_k_means_ends_with_every_point_at_its_nearest_mean(n, k, seed):
    assume(k <= n)
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 4, size=(n, 2)).astype(float)  # with repetitions
    labels = k_means(values, k, rng)
    centres = {label: values[labels == label].mean(axis=0) for label in set(labels.tolist())}
    assert set(centres) <= set(range(k))
    for value, label in zip(values, labels.tolist(), strict=True):
        nearest = min(((value - centre) ** 2).sum() for centre in centres.values())
        assert ((value - centres[label]) ** 2).sum() <= nearest + 1e-9


def test_features_of_a_sequence_are_the_mean_of_its_pictures():
    places = world([("goa", True, "", [(0.0, 0.0)]), ("goa", True, "", [(0.0, 0.0), (1.0, 0.0)])])
    features = np.array([[4.0, 0.0], [1.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(track_features(places, features), [[4, 0], [2, 1]])
    np.testing.assert_array_equal(track_features(places.of_tracks([1]), features[1:]), [[0, 0], [2, 1]])


def test_a_client_for_each_group_that_is_valid(caplog):
    places = world(block("goa", 0.0, "north") + block("goa", 0.0, "east", 3) + block("rome", 0.0, "hill", 1))
    clients = group_split(places)
    assert [(client.key, client.city, client.continent, len(client.tracks)) for client in clients] == [
        ("east", "goa", "asia", 6),
        ("north", "goa", "asia", 4),
    ]
    assert caplog.messages == ["excluded groups with fewer than two sequences of queries or of the database: hill"]
    with pytest.raises(DataError, match="group 'north' spans the cities goa, rome; expected different names"):
        group_split(world(block("goa", 0.0, "north") + block("rome", 0.0, "north")))


def test_what_a_client_needs():
    places = world(block("goa", 0.0, count=3))
    queries, database = [0, 1, 2], [3, 4, 5]
    assert is_valid(places, queries[:2] + database[:2])
    assert not is_valid(places, queries + database[:1])
    assert not is_valid(places, queries[:1] + database)


@given(st.integers(1, 20), st.integers(0, 19), st.integers(0, 3))
def test_clients_for_validation_are_no_clients_for_training(total, count, seed):
    clients = [Client(f"c{i:02d}", "", "", ()) for i in range(total)]
    if count >= total:
        with pytest.raises(DataError, match=f"vpr.validation-clients = {count}: the split gives {total} clients"):
            hold_out(clients, count, seed)
        return
    train, validation = hold_out(clients, count, seed)
    assert len(validation) == count
    assert sorted([*train, *validation], key=lambda client: client.key) == clients
    assert list(train) == sorted(train, key=lambda client: client.key)


@REAL
def test_floors_are_clients():
    places = read_indoor(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "ietower")
    clients = group_split(places)
    assert len(clients) == 25
    assert {track for client in clients for track in client.tracks} == set(places.present.tolist())
    assert all(len(own.queries_with_positive(10.0)) == len(own.queries) for own in (c.places(places) for c in clients))
    by_position = proximity_split(places, 5000.0, 0)  # floors lie 10 km apart
    assert {client.tracks for client in by_position} == {client.tracks for client in clients}


@REAL
def test_stretches_are_clients():
    places = read_nordland(Path(os.environ["FEDAPPS_DATA"]) / "vpr" / "nordland")
    clients = group_split(places)
    assert len(clients) == 30
    assert sum(len(client.places(places)) for client in clients) == 2 * 2975


def test_a_random_split_whose_clients_share_sequences_has_no_clients_to_validate_with():
    tracks = [Track("c", f"{role}{number}", role == "q") for role in "qd" for number in range(3) for _ in range(20)]
    along = np.stack([np.arange(60) * 10.0, np.zeros(60)], axis=1)
    dataset = SimpleNamespace(training=build_places(None, tracks, np.tile(along, (2, 1))))
    options = Options(split="random", source="files")
    clients, held = clients_of(dataset, options, 4, lambda: None)
    assert len(clients) == 4
    assert held == ()
    with pytest.raises(DataError, match=r"vpr.local-share = 0.3: a city has fewer sequences of queries than .*set it"):
        clients_of(dataset, replace(options, local_share=0.3), 4, lambda: None)
    with pytest.raises(DataError, match=r"vpr.validation-clients = 1: a city has fewer sequences than .*use vpr.val"):
        clients_of(dataset, replace(options, validation_clients=1), 4, lambda: None)
