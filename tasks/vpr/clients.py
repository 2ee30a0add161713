"""The clients of a split: sets of image sequences."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator

from .places import Places

#: The minimum number of sequences of queries, and of the database, of a valid client (Section 4.1).
MIN_SEQUENCES = 2


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
    seed_row : int or None
        The row of the query around which a Proximity client was built.
    """

    key: str
    city: str
    continent: str
    tracks: tuple[int, ...]
    seed_row: int | None = None

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


def client_of(places: Places, key: str, tracks: Sequence[int], seed_row: int | None = None) -> Client:
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
        seed_row=seed_row,
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


def clients_per_city(clients: Sequence[Client]) -> dict[str, int]:
    """Return the number of clients of each city, the k of :func:`~fedapps.tasks.vpr.splits.clustering_split`."""
    return dict(Counter(client.city for client in clients))
