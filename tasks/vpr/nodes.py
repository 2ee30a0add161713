"""The nodes of a data set: who its clients are, and what one of them holds. Made once per process."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from sim.seeding import generator
from tasks.base import NodeData
from tasks.seeding import torch_seed

from .clients import Client
from .clustering import track_features
from .datasets import Dataset
from .evaluation import CommonSet, drawn_for_test
from .fitting import check_network
from .networks import place_network
from .options import Options
from .pictures import KeptMaps, Pictures
from .places import Places
from .shares import as_many, clients_of, dataset_of, groups_of, held_out_queries
from .training_set import TrainingSet

logger = logging.getLogger(__name__)

CLUSTERED_IMAGES = 5  # pictures of a sequence that say what it looks like


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set with its clients, which have queries to train on; ``common`` sets are there for all of them."""

    dataset: Dataset
    clients: tuple[Client, ...]
    held_out: tuple[Client, ...]
    common: Mapping[str, CommonSet]
    kept: KeptMaps


def node_data(folder: Path, options: Options, partition: int, num_nodes: int) -> NodeData:
    """Node ``partition``, the clients being in the order of their keys.

    Raises :class:`DataError` when the split gives another number of clients.
    """
    found = federation(folder, options, num_nodes)
    clients = as_many(found.clients, found.dataset, num_nodes, folder, options)
    client = clients[partition]
    name = f"{client.key} of {num_nodes}"
    return _data(name, client.key, client.places(found.dataset.training), options, found, client.groups)


def whole_data(folder: Path, options: Options) -> NodeData:
    """All pictures to train with as one node, those in no client's hands too: centralised training."""
    found = _common_part(folder, options, own=False)
    held: tuple[Client, ...] = ()
    if options.validation_clients:
        found = federation(folder, options, 0)
        held = found.held_out
    places = found.dataset.training
    left = set(places.present.tolist()) - {track for client in held for track in client.tracks}
    return _data("all", folder.resolve().name, places.of_tracks(left), options, found, {})


def own_data(folder: Path, options: Options) -> NodeData:
    """A node's own folder, with common sets only of the cities that are named and there."""
    found = _common_part(folder, options, own=True)
    places = found.dataset.training
    return _data("own", folder.resolve().name, places, options, found, groups_of(places))


@lru_cache(maxsize=4)
def federation(folder: Path, options: Options, num_nodes: int) -> Federation:
    """The clients of a folder; ``num_nodes`` is how many the split "random" makes, 0 where there is no telling.

    Raises :class:`DataError` where no client comes out.
    """
    part = _common_part(folder, options, own=False)
    places, common = part.dataset.training, dict(part.common)
    clients, held = clients_of(part.dataset, options, num_nodes, partial(sequence_features, part.dataset, options))
    if held:
        tracks = [track for client in held for track in client.tracks]
        common["validation"] = _common(part.dataset, part.kept, "validation", places.of_tracks(tracks), options)
    return Federation(part.dataset, clients, held, common, part.kept)


@lru_cache(maxsize=4)
def _common_part(folder: Path, options: Options, *, own: bool) -> Federation:
    """All but the clients. Raises :class:`DataError` where the network cannot be made or pictures not be read."""
    check_network(options.backbone, options.pooling, options.weights_file, options.size)
    if options.weights_file is None:
        logger.warning(
            "vpr.weights = '': %s begins from weights that are drawn%s",
            options.backbone,
            ""
            if options.train_all
            else ", of which the first layers stay so: set vpr.train-all = true, or name a file",
        )
    dataset = dataset_of(folder, options, own=own)
    kept = KeptMaps(options.maps_megabytes * 2**20)
    common = {}
    if dataset.test is not None:
        common["test"] = _common(dataset, kept, "test", drawn_for_test(dataset.test, options), options)
    if dataset.validation is not None:
        common["validation"] = _common(dataset, kept, "validation", dataset.validation, options)
    return Federation(dataset, (), (), common, kept)


def _common(dataset: Dataset, kept: KeptMaps, name: str, places: Places, options: Options) -> CommonSet:
    dataset.inspection.require_readable(places)
    return CommonSet.of(Pictures(f"common {name}", places, options.size, kept), options.recall_radius)


def sequence_features(dataset: Dataset, options: Options) -> np.ndarray:
    """What sequences look like to the network before training: means of a few of their pictures' descriptors."""
    places = dataset.training
    rng = generator(options.split_seed, "vpr.clustering")
    shuffled = rng.permutation(len(places))
    shuffled = shuffled[np.argsort(places.track[shuffled], kind="stable")]
    _, starts, sizes = np.unique(places.track[shuffled], return_index=True, return_counts=True)
    few = shuffled[np.arange(len(shuffled)) - np.repeat(starts, sizes) < CLUSTERED_IMAGES]
    chosen = places.select(np.sort(few))
    dataset.inspection.require_readable(chosen)
    with torch_seed(options.split_seed, "vpr.clustering"), torch.no_grad():
        network = place_network(options.backbone, options.pooling, weights=options.weights_file)
    inputs = Pictures("", chosen, options.size, KeptMaps(0)).through(network)
    return track_features(chosen, inputs.describe(np.arange(len(chosen))))


def _data(
    name: str, key: str, places: Places, options: Options, found: Federation, groups: Mapping[str, str]
) -> NodeData:
    """``name`` is that of the pictures, which no others of the folder have."""
    found.dataset.inspection.require_readable(places)
    training = TrainingSet.of(Pictures(name, places, options.size, found.kept), options)
    held = held_out_queries(key, places, options)
    splits = {"train": {"query": torch.from_numpy(np.setdiff1d(training.miner.usable, held))}}
    if len(held):
        splits["test"] = {"query": torch.from_numpy(held)}
    return NodeData(key, splits, groups, {"training": training, "common": found.common})
