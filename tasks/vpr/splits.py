"""Partition sequences into clients, sets of sequences that have queries and database images.

The splits are those of Collaborative Visual Place Recognition through Federated Learning (FedVPR), Section 4.1. [I]
marks decisions that the paper leaves open.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator

from .places import Places

#: The minimum number of sequences of queries, and of the database, of a valid client (Section 4.1).
MIN_SEQUENCES = 2
MOST_STEPS = 100  # of k-means


@dataclass(frozen=True)
class Client:
    """The sequences of one client.

    Attributes
    ----------
    key : str
        The client's key, the same for equal seeds.
    city, continent : str
        The common city and continent of the sequences; "" if there are several.
    tracks : tuple of int
        Indices into ``Places.tracks``, ascending.
    """

    key: str
    city: str
    continent: str
    tracks: tuple[int, ...]

    @property
    def groups(self) -> dict[str, str]:
        """The labels ``city`` and ``continent``, as far as they are known."""
        return labels_of(self.city, self.continent)

    def places(self, places: Places) -> Places:
        """Return the client's images."""
        return places.of_tracks(self.tracks)


def labels_of(city: str, continent: str) -> dict[str, str]:
    """Return the labels of a node, as far as they are known."""
    return {name: label for name, label in (("city", city), ("continent", continent)) if label}


def is_valid(places: Places, tracks: Sequence[int]) -> bool:
    """Return whether ``tracks`` contain at least two sequences of queries and two of the database (Section 4.1)."""
    queries = sum(places.tracks[track].query for track in tracks)
    return queries >= MIN_SEQUENCES and len(tracks) - queries >= MIN_SEQUENCES


def client_of(places: Places, key: str, tracks: Sequence[int]) -> Client:
    """Return a client with the sequences ``tracks``; its city and continent are those that all sequences have in
    common.
    """
    cities = {places.tracks[track].city for track in tracks}
    continents = {places.tracks[track].continent for track in tracks}
    return Client(
        key,
        city=cities.pop() if len(cities) == 1 else "",
        continent=continents.pop() if len(continents) == 1 else "",
        tracks=tuple(sorted(tracks)),
    )


def at_least_one(clients: Sequence[Client], what: str) -> tuple[Client, ...]:
    """Return ``clients`` as a tuple.

    Raises
    ------
    DataError
        There is no client. ``what`` says which sequences were tried.
    """
    if not clients:
        raise DataError(
            f"the split gives no client: a client needs two sequences of queries and two of the database ({what})"
        )
    return tuple(clients)


def hold_out(clients: Sequence[Client], count: int, seed: int) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """Draw ``count`` clients for validation (Section 4.1: 12).

    Returns
    -------
    tuple of tuples of Client
        The clients to train with and those to validate with, both in their original order.

    Raises
    ------
    DataError
        No client would be left for training.
    """
    if not 0 <= count < len(clients):
        raise DataError(
            f"vpr.validation-clients = {count}: the split gives {len(clients)} clients; hold out fewer of them"
        )
    held = set(generator(seed, "vpr.validation").permutation(len(clients))[:count].tolist())
    return (
        tuple(client for i, client in enumerate(clients) if i not in held),
        tuple(client for i, client in enumerate(clients) if i in held),
    )


logger = logging.getLogger(__name__)


def proximity_split(places: Places, radius: float, seed: int) -> tuple[Client, ...]:
    """Form clients from neighbourhoods ("Proximity").

    In each city a query is drawn, and all sequences with an image within ``radius`` metres of it form a group, together
    with the query's own sequence. This repeats until no sequence of queries is left. A group that is not valid becomes
    no client, and its sequences are not used again [I]. To draw a query, a sequence is drawn uniformly, and then one of
    its images uniformly [I].

    Raises
    ------
    DataError
        There is no valid client.
    """
    clients = []
    for city in places.cities:
        rows = np.flatnonzero(np.array([track.city == city for track in places.tracks])[places.track])
        rng = generator(seed, "vpr.proximity", city)
        clients += _valid_clients(places, city, _neighbourhoods(places, rows, radius, rng))
    return at_least_one(clients, f"sequences within {radius:g} m of a query")


def clustering_split(places: Places, features: np.ndarray, counts: Mapping[str, int], seed: int) -> tuple[Client, ...]:
    """Form clients from sequences that look alike ("Clustering"), by k-means in each city.

    Parameters
    ----------
    places : Places
        The images.
    features : ndarray [len(places.tracks), d]
        Features of the sequences (:func:`~fedapps.tasks.vpr.splits.track_features`). The paper clusters images,
        but counts and validates sequences [I].
    counts : mapping of str to int
        The number k of clusters of each city, that of Proximity's clients at 2000 m. Cities without k, and clusters
        that are not valid, give no client.
    seed : int
        The seed.

    Raises
    ------
    DataError
        There is no valid client.
    """
    clients = []
    for city in places.cities:
        tracks = _tracks_of(places, city)
        k = min(counts.get(city, 0), len(tracks))
        if k < 1:
            continue
        labels = k_means(features[tracks], k, generator(seed, "vpr.clustering", city))
        clients += _valid_clients(places, city, (tracks[labels == label].tolist() for label in range(k)))
    return at_least_one(clients, "sequences in a cluster of a city")


def random_split(places: Places, num_clients: int, seed: int) -> tuple[Client, ...]:
    """Form ``num_clients`` similar clients with sequences of every city ("Random").

    In each city, sequences of queries and sequences of the database are dealt separately [I], one to each client; the
    paper's 64 sequences per client are more than one per city. If there are fewer sequences than clients, each sequence
    goes to several clients. If there are more, the remaining ones are dealt in turn, so the numbers of sequences differ
    by at most one. With a single city every client receives two of each role, so that it is valid.

    Raises
    ------
    DataError
        A city has too few sequences.
    """
    rng = generator(seed, "vpr.random", num_clients)
    decks = [(city, query, deck) for city in places.cities for query, deck in _by_role(places, city) if len(deck)]
    dealt: list[list[int]] = [[] for _ in range(num_clients)]
    turn, order = 0, rng.permutation(num_clients)
    for city, query, unshuffled in decks:
        deck = rng.permutation(unshuffled)
        least = -(-MIN_SEQUENCES // sum(other == query for _, other, _ in decks))
        if len(deck) < least:
            role = "queries" if query else "the database"
            raise DataError(f"{city or 'the data'} has {len(deck)} sequence of {role}; a client needs {least}")
        for client in range(num_clients):
            dealt[client] += [int(deck[(client * least + i) % len(deck)]) for i in range(least)]
        for track in deck[num_clients * least :]:
            dealt[order[turn % num_clients]].append(int(track))
            turn += 1
    clients = [client_of(places, f"client-{i:03d}", tracks) for i, tracks in enumerate(dealt)]
    return at_least_one([client for client in clients if is_valid(places, client.tracks)], "sequences of every city")


def group_split(places: Places) -> tuple[Client, ...]:
    """Form one client from each group of the data (a floor or a stretch), with its name.

    Groups that are not valid are excluded and logged.

    Raises
    ------
    DataError
        There is no valid client, or a group spans several cities.
    """
    groups: dict[str, list[int]] = {}
    for track in places.present.tolist():
        groups.setdefault(places.tracks[track].group, []).append(track)
    for name, tracks in groups.items():
        if len(cities := sorted({places.tracks[track].city for track in tracks})) > 1:
            raise DataError(
                f"group {name!r} spans the cities {', '.join(cities)}; expected different names in different cities"
            )
    valid = {name for name, tracks in groups.items() if is_valid(places, tracks)}
    clients = [client_of(places, name, tracks) for name, tracks in sorted(groups.items()) if name in valid]
    of_groups = at_least_one(clients, "sequences of a group")
    if left_out := sorted(groups.keys() - valid):
        logger.warning(
            "excluded groups with fewer than two sequences of queries or of the database: %s", ", ".join(left_out)
        )
    return of_groups


def _valid_clients(places: Places, city: str, groups: Iterable[Sequence[int]]) -> list[Client]:
    """A client for each valid group of sequences of a city, numbered in their order."""
    valid = [group for group in groups if is_valid(places, group)]
    return [client_of(places, f"{city or 'client'}-{number:02d}", group) for number, group in enumerate(valid)]


def _neighbourhoods(
    places: Places, rows: np.ndarray, radius: float, rng: np.random.Generator
) -> Iterator[Sequence[int]]:
    """For each query drawn from a city's ``rows``, the sequences near it that are still free."""
    tree = cKDTree(places.position[rows])
    free = set(np.unique(places.track[rows]).tolist())
    queries = [track for track in sorted(free) if places.tracks[track].query]
    for query_track in rng.permutation(queries).tolist():
        if query_track not in free:
            continue
        seed_row = int(rng.choice(rows[places.track[rows] == query_track]))
        near = rows[tree.query_ball_point(places.position[seed_row], radius)]
        group = sorted(free.intersection(places.track[near].tolist()) | {query_track})
        free.difference_update(group)
        yield group


def _tracks_of(places: Places, city: str) -> np.ndarray:
    return np.array([track for track in places.present if places.tracks[track].city == city], dtype=np.int64)


def _by_role(places: Places, city: str) -> Iterator[tuple[bool, np.ndarray]]:
    tracks = _tracks_of(places, city)
    is_query = np.array([places.tracks[track].query for track in tracks], dtype=bool)
    yield True, tracks[is_query]
    yield False, tracks[~is_query]


def track_features(places: Places, features: np.ndarray) -> np.ndarray:
    """Return the mean features of every sequence.

    Parameters
    ----------
    places : Places
        n images of m sequences.
    features : ndarray [n, d]
        Features of the images.

    Returns
    -------
    ndarray [m, d]
        Mean features; zeros for sequences without images.
    """
    sums = np.zeros((len(places.tracks), features.shape[1]))
    np.add.at(sums, places.track, features)
    counts = np.bincount(places.track, minlength=len(places.tracks))
    return sums / np.maximum(counts, 1)[:, None]


def k_means(points: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Cluster points with Lloyd's algorithm and k-means++ initialisation.

    Arthur and Vassilvitskii, k-means++: The Advantages of Careful Seeding, SODA 2007. The draws differ from those of
    ``scipy.cluster.vq.kmeans2``, whose clients would differ from the published ones.

    Parameters
    ----------
    points : ndarray [n, d]
        The points.
    k : int
        The number of clusters, 1 to n.
    rng : Generator
        Draws the initial centres.

    Returns
    -------
    ndarray [n]
        Labels 0 to k-1, int64. A cluster that loses all its points keeps its centre and may stay empty.
    """
    centres = points[rng.integers(len(points), size=1)]
    while len(centres) < k:
        squared = cdist(points, centres, "sqeuclidean").min(axis=1)
        total = squared.sum()
        chances = squared / total if total > 0 else None  # uniform if all points are centres already
        centres = np.concatenate([centres, points[rng.choice(len(points), size=1, p=chances)]])
    labels = np.full(len(points), -1)
    for _ in range(MOST_STEPS):
        nearest = cdist(points, centres, "sqeuclidean").argmin(axis=1)
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        for label in np.unique(labels):
            centres[label] = points[labels == label].mean(axis=0)
    return labels
