"""The nodes of a data set: the clients of the split, and the data of each. Built once per process.

Clients and the queries that they can train on follow from positions.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import NodeData

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator, torch_seed

from .datasets import Dataset, read_dataset
from .evaluation import CommonSet, drawn_for_test
from .networks import check_network, network_of
from .options import Options
from .places import Places, in_range_of_degrees
from .retrieval import drawn_of_each
from .splits import (
    Client,
    clustering_split,
    group_split,
    hold_out,
    labels_of,
    proximity_split,
    random_split,
    track_features,
)
from .training_set import FeatureMapCache, ImageSet, TrainingSet, miner_of


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
        The split gives no client, or clients to validate with whose sequences other clients train on.
    """
    split = _split(dataset, options, num_nodes, features)
    clients, held = hold_out(split, options.validation_clients, options.split_seed)
    if set(chain.from_iterable(c.tracks for c in held)) & set(chain.from_iterable(c.tracks for c in clients)):
        raise DataError(
            f"vpr.validation-clients = {options.validation_clients}: a city has fewer sequences than vpr.split = "
            f"'random' has clients, so they train on the sequences of the validation clients; use "
            "vpr.validation-cities, or decrease num-nodes"
        )
    queries = [track for c in clients for track in c.tracks if dataset.training.tracks[track].query]
    if options.local_share and len(set(queries)) < len(queries):
        raise DataError(
            f"vpr.local-share = {options.local_share:g}: a city has fewer sequences of queries than vpr.split = "
            "'random' has clients, so some train on what others hold out; set it to 0, or decrease num-nodes"
        )
    # By chance nothing may be near: such a client is a node that never trains.
    trained = [
        client
        for client in clients
        if options.split == "random" or len(queries_to_train_on(client.key, client.places(dataset.training), options))
    ]
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
    return clustering_split(places, features(), Counter(client.city for client in near), seed)


logger = logging.getLogger(__name__)
CLUSTERED_IMAGES = 5  # images per sequence that the clustering split describes


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set with the clients that have queries to train on, and the sets that are common to all of them."""

    dataset: Dataset
    clients: tuple[Client, ...]
    held_out: tuple[Client, ...]
    common: Mapping[str, CommonSet]
    kept: FeatureMapCache


def node_data(folder: Path, options: Options, partition: int, num_nodes: int) -> NodeData:
    """Return the data of node ``partition``; clients are sorted by key.

    Raises
    ------
    DataError
        The split gives another number of clients than ``num_nodes``.
    """
    split_data = federation(folder, options, num_nodes)
    clients = as_many(split_data.clients, split_data.dataset, num_nodes, folder, options)
    client = clients[partition]
    name = f"{client.key} of {num_nodes}"
    return _data(name, client.key, client.places(split_data.dataset.training), options, split_data, client.groups)


def whole_data(folder: Path, options: Options) -> NodeData:
    """Return all training images as one node for centralised training, including those that no client has."""
    split_data = _common_part(folder, options, own=False)
    held: tuple[Client, ...] = ()
    if options.validation_clients:
        split_data = federation(folder, options, 0)
        held = split_data.held_out
    places = split_data.dataset.training
    left = set(places.present.tolist()) - {track for client in held for track in client.tracks}
    return _data("all", folder.resolve().name, places.of_tracks(left), options, split_data, {})


def own_data(folder: Path, options: Options) -> NodeData:
    """Return the data of a deployed node's folder. Common sets contain only named cities that the folder has."""
    split_data = _common_part(folder, options, own=True)
    places = split_data.dataset.training
    return _data("own", folder.resolve().name, places, options, split_data, groups_of(places))


@lru_cache(maxsize=4)
def split_clients(folder: Path, options: Options, num_nodes: int) -> tuple[tuple[Client, ...], tuple[Client, ...]]:
    """As :func:`clients_of`, of the data set in a folder, once per process."""
    dataset = dataset_of(folder, options, own=False)
    return clients_of(dataset, options, num_nodes, partial(sequence_features, dataset, options))


@lru_cache(maxsize=4)
def federation(folder: Path, options: Options, num_nodes: int) -> Federation:
    """Return the clients of a folder.

    Parameters
    ----------
    folder : Path
        The folder of the data set.
    options : Options
        The options of the task.
    num_nodes : int
        The number of clients of the split "random"; 0 if it is unknown.

    Raises
    ------
    DataError
        The split gives no client.
    """
    part = _common_part(folder, options, own=False)
    places, common = part.dataset.training, dict(part.common)
    clients, held = split_clients(folder, options, num_nodes)
    if held:
        tracks = [track for client in held for track in client.tracks]
        name = f"validation of {num_nodes}"  # the clients that are held out depend on their number
        common["validation"] = _common(part.dataset, part.kept, name, places.of_tracks(tracks), options)
    return Federation(part.dataset, clients, held, common, part.kept)


@lru_cache(maxsize=4)
def require_network(options: Options) -> None:
    """Check the network from which training starts, and log if its weights are random.

    Raises
    ------
    DataError
        It cannot be built.
    """
    check_network(options)
    if options.given_weights is None:
        logger.warning(
            "vpr.weights = '': %s starts from random weights%s",
            options.backbone,
            ""
            if options.train_all
            else ", and its frozen layers stay random: set vpr.train-all = true, or name a file",
        )


@lru_cache(maxsize=4)
def _common_part(folder: Path, options: Options, *, own: bool) -> Federation:
    """Everything but the clients. Raises :class:`DataError` if images cannot be read."""
    dataset = dataset_of(folder, options, own=own)
    kept = FeatureMapCache(options.maps_megabytes * 2**20)
    common = {}
    if dataset.test is not None:
        common["test"] = _common(dataset, kept, "test", drawn_for_test(dataset.test, options), options)
    if dataset.validation is not None:
        common["validation"] = _common(dataset, kept, "validation", dataset.validation, options)
    return Federation(dataset, (), (), common, kept)


def common_test(folder: Path, options: Options) -> CommonSet | None:
    """Return the common test of the nodes of a folder; ``None`` if it has none."""
    return _common_part(folder, options, own=False).common.get("test")


def _common(dataset: Dataset, kept: FeatureMapCache, name: str, places: Places, options: Options) -> CommonSet:
    dataset.inspection.require_readable(places)
    return CommonSet.of(ImageSet(f"common {name}", places, options.size, kept), options.recall_radius)


def sequence_features(dataset: Dataset, options: Options) -> np.ndarray:
    """Return the features of sequences before training: mean descriptors of a few of their images."""
    places = dataset.training
    rng = generator(options.split_seed, "vpr.clustering")
    described_places = places.select(drawn_of_each(places.track, CLUSTERED_IMAGES, rng))
    dataset.inspection.require_readable(described_places)
    with torch_seed(options.split_seed, "vpr.clustering"), torch.no_grad():
        network = network_of(options)
    inputs = ImageSet("", described_places, options.size, FeatureMapCache(0)).through(network)
    return track_features(described_places, inputs.describe(np.arange(len(described_places))))


def _data(
    name: str, key: str, places: Places, options: Options, split_data: Federation, groups: Mapping[str, str]
) -> NodeData:
    """The data of one node; ``name`` identifies its images among those of the folder."""
    split_data.dataset.inspection.require_readable(places)
    training = TrainingSet.of(ImageSet(name, places, options.size, split_data.kept), options)
    held = held_out_queries(key, places, options)
    splits = {"train": {"query": torch.from_numpy(np.setdiff1d(training.miner.usable, held))}}
    if len(held):
        splits["test"] = {"query": torch.from_numpy(held)}
    return NodeData(key, splits, groups, {"training": training, "common": split_data.common})
