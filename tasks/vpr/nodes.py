"""The nodes of a data set: the clients of the split, and the data of each. Built once per process."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import NodeData

from fedapps.base.seeding import generator, torch_seed

from .clients import Client
from .datasets import Dataset
from .evaluation import CommonSet, drawn_for_test
from .image_sets import FeatureMapCache, ImageSet
from .networks import check_network, network_of
from .options import Options
from .places import Places
from .shares import as_many, clients_of, dataset_of, groups_of, held_out_queries
from .splits import track_features
from .training_set import TrainingSet

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
    clients, held = clients_of(part.dataset, options, num_nodes, partial(sequence_features, part.dataset, options))
    if held:
        tracks = [track for client in held for track in client.tracks]
        common["validation"] = _common(part.dataset, part.kept, "validation", places.of_tracks(tracks), options)
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
    shuffled = rng.permutation(len(places))
    shuffled = shuffled[np.argsort(places.track[shuffled], kind="stable")]
    _, starts, sizes = np.unique(places.track[shuffled], return_index=True, return_counts=True)
    few = shuffled[np.arange(len(shuffled)) - np.repeat(starts, sizes) < CLUSTERED_IMAGES]
    chosen = places.select(np.sort(few))
    dataset.inspection.require_readable(chosen)
    with torch_seed(options.split_seed, "vpr.clustering"), torch.no_grad():
        network = network_of(options)
    inputs = ImageSet("", chosen, options.size, FeatureMapCache(0)).through(network)
    return track_features(chosen, inputs.describe(np.arange(len(chosen))))


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
