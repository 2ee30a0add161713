"""A client: the sequences it has."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sim.seeding import generator
from tasks.profiles import DataError

from .places import Places

#: A client is valid with at least so many sequences of queries and so many of the database (Sec. 4.1).
MIN_SEQUENCES = 2


@dataclass(frozen=True)
class Client:
    """One client's sequences, ascending places in ``Places.tracks``; ``city`` and ``continent`` "" where several.

    ``key`` is stable for a seed. ``seed_row`` is the row of the query that a Proximity client grew around.
    """

    key: str
    city: str
    continent: str
    tracks: tuple[int, ...]
    seed_row: int | None = None

    @property
    def groups(self) -> dict[str, str]:
        """City and continent, where they are known."""
        return labels_of(self.city, self.continent)

    def places(self, places: Places) -> Places:
        """The client's own pictures out of all."""
        return places.of_tracks(self.tracks)


def labels_of(city: str, continent: str) -> dict[str, str]:
    """The groups of a node: those that are known."""
    return {name: label for name, label in (("city", city), ("continent", continent)) if label}


def is_valid(places: Places, tracks: Sequence[int]) -> bool:
    """Whether ``tracks`` hold at least two sequences of queries and two of the database (Sec. 4.1)."""
    queries = sum(places.tracks[track].query for track in tracks)
    return queries >= MIN_SEQUENCES and len(tracks) - queries >= MIN_SEQUENCES


def client_of(places: Places, key: str, tracks: Sequence[int], seed_row: int | None = None) -> Client:
    """A client of ``tracks``, its city and continent theirs where they have one in common."""
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
    """``clients``, or :class:`DataError`: no two sequences of each role are ``what``."""
    if not clients:
        raise DataError(f"no client: nowhere are there two sequences of queries and two of the database ({what})")
    return tuple(clients)


def hold_out(clients: Sequence[Client], count: int, seed: int) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """Clients to train with and ``count`` to validate with, drawn at random (Sec. 4.1: 12), in their order.

    Raises :class:`DataError` when nobody would be left to train with.
    """
    if not 0 <= count < len(clients):
        raise DataError(f"{count} of {len(clients)} clients for validation; expected fewer than there are")
    held = set(generator(seed, "vpr.validation").permutation(len(clients))[:count].tolist())
    return (
        tuple(client for i, client in enumerate(clients) if i not in held),
        tuple(client for i, client in enumerate(clients) if i in held),
    )


def clients_per_city(clients: Sequence[Client]) -> dict[str, int]:
    """How many clients each city has: the k of :func:`clustering_split`."""
    return dict(Counter(client.city for client in clients))
