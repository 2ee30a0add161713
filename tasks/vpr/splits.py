"""Who is a client: the sequences of a data set, dealt out so that each client has some to ask and some to know.

The splits of Collaborative Visual Place Recognition through Federated Learning (FedVPR), Sec. 4.1. What the paper
leaves open is marked with [I].
"""

import logging
from collections.abc import Iterator, Mapping

import numpy as np
from scipy.spatial import cKDTree

from sim.seeding import generator
from tasks.profiles import DataError

from .clients import MIN_SEQUENCES, Client, at_least_one, client_of, is_valid
from .clustering import k_means
from .places import Places

logger = logging.getLogger(__name__)


def proximity_split(places: Places, radius: float, seed: int) -> tuple[Client, ...]:
    """Clients that stay in their neighbourhood ("Proximity").

    In each city a query is drawn, and all sequences with a picture within ``radius`` metres of it become a group, the
    query's own among them; so on until no sequence of queries is left. A group that is not valid is no client, and
    its sequences are not tried again [I]. The query is that of a sequence drawn uniformly, then uniformly from it [I].
    Raises :class:`DataError` when no client comes out.
    """
    clients = []
    for city in places.cities:
        rows = np.flatnonzero(np.array([track.city == city for track in places.tracks])[places.track])
        rng = generator(seed, "vpr.proximity", city)
        found = [
            (seed_row, group)
            for seed_row, group in _neighbourhoods(places, rows, radius, rng)
            if is_valid(places, group)
        ]
        clients += [client_of(places, _key(city, i), group, row) for i, (row, group) in enumerate(found)]
    return at_least_one(clients, f"sequences within {radius:g} m of a query")


def clustering_split(places: Places, features: np.ndarray, counts: Mapping[str, int], seed: int) -> tuple[Client, ...]:
    """Clients whose pictures look alike ("Clustering"): k-means of the sequences of each city.

    ``features`` ``[len(places.tracks), d]`` are of sequences (:func:`track_features`; the paper groups pictures, but
    counts and validates by sequences [I]). ``counts`` is k per city, that of Proximity's clients at 2000 m
    (:func:`clients_per_city`); a city without k, and a cluster that is not valid, gives no client. Raises
    :class:`DataError` when no client comes out, or for features of another length.
    """
    if features.ndim != 2 or len(features) != len(places.tracks):
        raise DataError(
            f"features of shape {features.shape}; expected a row for each of {len(places.tracks)} sequences"
        )
    clients = []
    for city in places.cities:
        tracks = _tracks_of(places, city)
        k = min(counts.get(city, 0), len(tracks))
        if k < 1:
            continue
        labels = k_means(features[tracks], k, generator(seed, "vpr.clustering", city))
        groups = [tuple(tracks[labels == label].tolist()) for label in range(k)]
        valid = [group for group in groups if is_valid(places, group)]
        clients += [client_of(places, _key(city, i), group) for i, group in enumerate(valid)]
    return at_least_one(clients, "sequences in a cluster of a city")


def random_split(places: Places, num_clients: int, seed: int) -> tuple[Client, ...]:
    """Clients that are all alike ("Random"): each has sequences of every city.

    In each city, the sequences of queries and those of the database are dealt out separately [I] (the paper's 64
    sequences per client are more than one per city would come to), one to each client. Where there are fewer
    sequences than clients, each of them goes to several; where there are more, the rest goes round, so that numbers of
    sequences differ by at most one. With a single city every client gets two of each, so that it is valid.

    Raises :class:`DataError` when a city has too few sequences even to be duplicated, and for no client.
    """
    if num_clients < 1:
        raise DataError(f"{num_clients} clients; expected at least 1")
    rng = generator(seed, "vpr.random", num_clients)
    decks = [(city, query, deck) for city in places.cities for query, deck in _by_role(places, city) if len(deck)]
    dealt: list[list[int]] = [[] for _ in range(num_clients)]
    turn, order = 0, rng.permutation(num_clients)
    for city, query, unshuffled in decks:
        deck = rng.permutation(unshuffled)
        least = -(-MIN_SEQUENCES // sum(other == query for _, other, _ in decks))
        if len(deck) < least:
            raise DataError(f"{city or 'the data'} has {len(deck)} sequence of {_role(query)}; a client needs {least}")
        for client in range(num_clients):
            dealt[client] += [int(deck[(client * least + i) % len(deck)]) for i in range(least)]
        for track in deck[num_clients * least :]:
            dealt[order[turn % num_clients]].append(int(track))
            turn += 1
    clients = [client_of(places, f"client-{i:03d}", tracks) for i, tracks in enumerate(dealt)]
    return at_least_one([client for client in clients if is_valid(places, client.tracks)], "sequences of every city")


def group_split(places: Places) -> tuple[Client, ...]:
    """A client for each group of the data, a floor or a stretch, named after it.

    Those that are not valid fall away, named in the log. Raises :class:`DataError` when no client comes out, or a group
    lies in several cities.
    """
    groups: dict[str, list[int]] = {}
    for track in places.present.tolist():
        groups.setdefault(places.tracks[track].group, []).append(track)
    for name, tracks in groups.items():
        if len(cities := sorted({places.tracks[track].city for track in tracks})) > 1:
            raise DataError(f"group {name!r} lies in the cities {', '.join(cities)}; expected names of their own")
    valid = {name for name, tracks in groups.items() if is_valid(places, tracks)}
    clients = [client_of(places, name, tracks) for name, tracks in sorted(groups.items()) if name in valid]
    found = at_least_one(clients, "sequences of a group")
    if left_out := sorted(groups.keys() - valid):
        logger.warning("left out, without two sequences of queries and two of the database: %s", ", ".join(left_out))
    return found


def _neighbourhoods(
    places: Places, rows: np.ndarray, radius: float, rng: np.random.Generator
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of a city's ``rows``: the query drawn and the sequences near it that no earlier one took."""
    tree = cKDTree(places.position[rows])
    free = set(np.unique(places.track[rows]).tolist())
    queries = [track for track in sorted(free) if places.tracks[track].query]
    for own in rng.permutation(queries).tolist():
        if own not in free:
            continue
        seed_row = int(rng.choice(rows[places.track[rows] == own]))
        near = rows[tree.query_ball_point(places.position[seed_row], radius)]
        group = sorted(free.intersection(places.track[near].tolist()) | {own})
        free.difference_update(group)
        yield seed_row, tuple(group)


def _tracks_of(places: Places, city: str) -> np.ndarray:
    return np.array([track for track in places.present if places.tracks[track].city == city], dtype=np.int64)


def _by_role(places: Places, city: str) -> Iterator[tuple[bool, np.ndarray]]:
    tracks = _tracks_of(places, city)
    is_query = np.array([places.tracks[track].query for track in tracks], dtype=bool)
    yield True, tracks[is_query]
    yield False, tracks[~is_query]


def _key(city: str, number: int) -> str:
    return f"{city or 'client'}-{number:02d}"


def _role(query: bool) -> str:
    return "queries" if query else "the database"
