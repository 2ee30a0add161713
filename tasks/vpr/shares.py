"""The clients of a data set and the queries that they can train on; both follow from positions."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator

from .clients import Client, clients_per_city, hold_out, labels_of
from .datasets import Dataset, read_dataset
from .mining import Miner
from .options import Options
from .places import Places
from .positions import in_range_of_degrees
from .splits import clustering_split, group_split, proximity_split, random_split


@lru_cache(maxsize=4)
def dataset_of(folder: Path, options: Options, *, own: bool) -> Dataset:
    """Read a data set (:func:`~fedapps.tasks.vpr.datasets.read_dataset`) once per process."""
    return read_dataset(folder, options, own=own)


def clients_of(
    dataset: Dataset, options: Options, num_nodes: int, features: Callable[[], np.ndarray]
) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """Return the clients that train, sorted by key, and those held out for validation.

    Parameters
    ----------
    dataset : Dataset
        The data set.
    options : Options
        The options of the task.
    num_nodes : int
        The number of clients of the split "random"; 0 if it is unknown.
    features : callable
        Returns the features of the sequences, ``[tracks, d]``, for the split "clustering".

    Raises
    ------
    DataError
        The split gives no client.
    """
    split = _split(dataset, options, num_nodes, features)
    clients, held = hold_out(split, options.validation_clients, options.split_seed)
    # By chance nothing may be near: such a client is a node that never trains.
    trained = [c for c in clients if options.split == "random" or _can_train(c, dataset.training, options)]
    return tuple(sorted(trained, key=lambda client: client.key)), held


def as_many(
    clients: tuple[Client, ...], dataset: Dataset, num_nodes: int, folder: Path, options: Options
) -> tuple[Client, ...]:
    """Return ``num_nodes`` clients; if there are more and the options allow it, a random subset.

    Raises
    ------
    DataError
        There are fewer clients, or more that the options do not draw from.
    """
    if len(clients) > num_nodes and options.draws_surplus:
        rng = generator(options.split_seed, "vpr.surplus", num_nodes)
        return tuple(clients[index] for index in np.sort(rng.permutation(len(clients))[:num_nodes]))
    if len(clients) == num_nodes:
        return clients
    split = f"vpr.split = {options.split!r}" + (
        f" at {options.proximity:g} m" if options.split in ("proximity", "clustering") else ""
    )
    advice = f"set num-nodes = {len(clients)}" if clients else "increase vpr.near or vpr.radius, or decrease vpr.far"
    if not clients and in_range_of_degrees(dataset.training):
        advice += "; if the positions are in degrees, convert them to metres, or use a table with columns lon and lat"
    if len(clients) > num_nodes:
        advice += ", or vpr.surplus = 'draw' to draw a subset"
    elif options.source == "simulated":
        advice += ", increase vpr.world-metres or vpr.world-cities, or decrease vpr.radius"
    raise DataError(
        f"{folder}: {split} gives {len(clients)} clients that have a query to train on, not {num_nodes}: {advice}"
    )


def queries_to_train_on(key: str, places: Places, options: Options) -> np.ndarray:
    """Return the indices of the queries that have a positive and a negative and are not held out."""
    queries: np.ndarray = np.setdiff1d(miner_of(places, options).usable, held_out_queries(key, places, options))
    return queries


def held_out_queries(key: str, places: Places, options: Options) -> np.ndarray:
    """Return the indices of the queries whose sequences a node holds out for its own test, never all of them."""
    of_query = places.track[places.queries]
    tracks = np.unique(of_query)
    if options.local_share == 0 or len(tracks) < 2:
        return np.zeros(0, dtype=np.int64)
    count = min(max(1, round(options.local_share * len(tracks))), len(tracks) - 1)
    drawn = generator(options.split_seed, "vpr.local", key).permutation(tracks)[:count]
    return np.flatnonzero(np.isin(of_query, drawn))


def groups_of(places: Places) -> dict[str, str]:
    """Return the city and the continent of ``places``, if they are known and the same for all sequences."""
    labels = {(places.tracks[track].city, places.tracks[track].continent) for track in places.present}
    return labels_of(*labels.pop()) if len(labels) == 1 else {}


def miner_of(places: Places, options: Options) -> Miner:
    """Return the miner of the queries and the database of ``places``, with cities apart."""
    queries, database = places.queries, places.database
    return Miner(
        places.position_apart[queries],
        places.position_apart[database],
        places.track[database],
        near=options.near,
        far=options.far,
    )


def _split(dataset: Dataset, options: Options, num_nodes: int, features: Callable[[], np.ndarray]) -> Sequence[Client]:
    places, seed = dataset.training, options.split_seed
    if options.split == "random":
        if num_nodes == 0:
            raise DataError(
                "vpr.validation-clients with vpr.split = 'random': the number of clients is unknown for pooled data; "
                "use vpr.validation-cities instead"
            )
        return random_split(places, num_nodes + options.validation_clients, seed)
    if options.split == "group":
        return group_split(places)
    near = proximity_split(places, options.proximity, seed)
    if options.split == "proximity":
        return near
    return clustering_split(places, features(), clients_per_city(near), seed)


def _can_train(client: Client, places: Places, options: Options) -> bool:
    return len(queries_to_train_on(client.key, client.places(places), options)) > 0
