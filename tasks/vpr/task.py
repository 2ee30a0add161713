"""The task "vpr": recognise the place of an image with triplets that each node mines in its own images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

import numpy as np
from fedapps.tasks.base import Batch, Evaluation, MetricRule, Metrics, NodeData, Secret, Task
from fedapps.tasks.model_folder import field_of
from fedapps.tasks.profiles import ModelRoles, NodeProfile, check_partition, pixels
from fedapps.tasks.vpr.world.world import StreetWorld, write_streets
from torch import Tensor, nn

from fedapps.base.errors import DataError, listed
from fedapps.base.tables import write_table
from fedapps.base.text_files import shown

from . import nodes
from .datasets import Dataset, kind_of
from .evaluation import AMONG, CommonSet, own_metrics, traces
from .networks import (
    FROZEN,
    Normalisation,
    PlaceNetwork,
    check_image_size,
    check_network,
    network_of,
    normalisation_for,
)
from .options import Options as VprOptions
from .options import require_weights
from .places import Places
from .readers import CONTINENTS_FILE
from .training_set import TrainingSet, described, epoch_of_triplets, loss_of_triplets

_LISTED = 10  # cities that a line lists
#: The floor of a comparison: a database in random order.
RANDOM_ORDER = "random order"


class VprTask(Task):
    """Visual place recognition with triplets that each node mines in its own images (FedVPR [1]_).

    A node has sequences of queries and of the database. An example is a query with a positive and a negative among its
    images. The splits hold ``query`` int64 ``[n]``; "test" exists if the node holds out queries. ``NodeData.extra``
    holds ``training``, the node's :class:`~fedapps.tasks.vpr.training_set.TrainingSet`, and ``common``, the sets on
    which all nodes' models are evaluated, by name (:class:`~fedapps.tasks.vpr.evaluation.CommonSet`). Because the
    images of an epoch depend on the model, only :meth:`training_batches` yields batches.

    Only ``trained.*``, ``pooling.*`` and ``projection.*`` are shared. ``frozen.*`` never changes and is the same on all
    nodes, from the weight file or the run's seed.

    A profile does not check whether the weights fit the network, nor whether the images of common tests can be read.
    The split "clustering" compares the features of images, which needs torch.

    .. [1] Dutto et al., Collaborative Visual Place Recognition through Federated Learning, 2024,
       https://arxiv.org/abs/2404.13324.
    """

    name: ClassVar[str] = "vpr"
    Options: ClassVar[type] = VprOptions
    options: VprOptions
    headline: ClassVar[tuple[str, ...]] = ("test.recall_at_1", "test.recall_at_5", "test.recall_at_10")
    files: ClassVar[Mapping[str, str]] = {
        "`places.csv`": (
            "`path, sequence, role` (query, database), `lon, lat` (degrees) or `x, y` (m), optionally `city, continent`"
        ),
        "`train_val/CITY/{query,database}`, or `nordland_64x32.npz`": (
            "as in Mapillary Street-Level Sequences, or Nordland"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (RANDOM_ORDER,)
    vectorises: ClassVar[bool] = False
    trained_model: ClassVar[str] = "fedapps.tasks.vpr.trained:VprTrained"
    log_import: ClassVar[str] = "fedapps.tasks.vpr.logs:VprImport"
    metric_means: ClassVar[Mapping[str, MetricRule]] = {
        f"{name}.recall_at_{n}": "uniform" for name in ("test", "validation") for n in AMONG
    }

    def __init__(self, options: VprOptions | None = None) -> None:
        """Raise :class:`DataError` if options are incompatible (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()

    @property
    def roles(self) -> ModelRoles:
        """The model has no head: its descriptors are the representation. Its examples are mined in training."""
        return ModelRoles(features=True, examples=False)

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        names = ("size", "world_cities", "world_test_cities", "world_metres", "world_spacing")
        return {name: getattr(self.options, name) for name in names}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate cities. Raise :class:`DataError` for the source "files"."""
        options = self.options
        if not self.has_world:
            raise DataError(
                "vpr.source = 'files': set data-dir to the folder of the images, or set vpr.source = 'simulated' for "
                "simulated cities"
            )
        try:
            world = StreetWorld(
                cities=options.world_cities,
                test_cities=options.world_test_cities,
                kilometres=num_nodes * options.world_metres / 1000 / options.world_cities,
                size=options.size[::-1],
                spacing=options.world_spacing,
            )
        except ValueError as error:
            raise DataError(f"vpr.world-*: {error}") from error
        write_streets(folder, world, seed)
        continents = [(city, continent) for city, (continent, _) in world.names().items()]
        write_table(folder / CONTINENTS_FILE, ("city", "continent"), continents)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        check_partition(partition, num_partitions)
        require_weights(self.options.given_weights)
        dataset = nodes.dataset_of(folder, self.options, own=False)
        clients, _ = nodes.split_clients(folder, self.options, num_partitions)
        client = nodes.as_many(clients, dataset, num_partitions, folder, self.options)[partition]
        return self._profile(dataset, client.key, client.places(dataset.training), client.groups)

    def own_profile(self, folder: Path) -> NodeProfile:
        require_weights(self.options.given_weights)
        dataset = nodes.dataset_of(folder, self.options, own=True)
        return self._profile(dataset, folder.resolve().name, dataset.training, nodes.groups_of(dataset.training))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        dataset = nodes.dataset_of(folder, self.options, own=own)
        sets = {"training": dataset.training, "common test": dataset.test, "common validation": dataset.validation}
        parts = [
            f"{name}: {len(places.queries)} queries and {len(places.database)} database images of {_cities(places)}"
            for name, places in sets.items()
            if places is not None
        ]
        return (
            f"data set {kind_of(folder, self.options)}, {'; '.join(parts)}; positions in m, right within "
            f"{self.options.recall_radius:g} m"
        )

    def _profile(self, dataset: Dataset, key: str, places: Places, groups: dict[str, str]) -> NodeProfile:
        dataset.inspection.require_readable(places)
        return NodeProfile(key, len(nodes.queries_to_train_on(key, places, self.options)), groups)

    def build_model(self) -> PlaceNetwork:
        """Return the network. Weights that no file gives are drawn."""
        return network_of(self.options)

    def facts(self, data: NodeData | None) -> Mapping[str, Any]:
        """Return the ``normalisation`` of images, which depends on the first weights."""
        return {"normalisation": normalisation_for(self.options.backbone, self.options.given_weights)}

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> PlaceNetwork:
        kind = field_of(facts, "normalisation", str)
        if kind not in get_args(Normalisation):
            raise DataError(f"normalisation = {shown(kind)}: must be one of {', '.join(get_args(Normalisation))}")
        network = network_of(self.options, cast(Normalisation, kind))
        if next(network.parameters()).is_meta:  # the first call, before memory is taken
            check_image_size(network, self.options)
        return network

    @property
    def fixed(self) -> tuple[str, ...]:
        return (FROZEN,)

    # -- data ----------------------------------------------------------------------------------------------

    @property
    def longest_epoch(self) -> int:
        return self.options.queries_per_epoch

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if the weights or the image size do not fit the network."""
        check_network(self.options)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """Read client ``partition`` of the split; clients are sorted by key.

        Raises
        ------
        DataError
            The split gives another number of clients than ``num_partitions``.
        """
        check_partition(partition, num_partitions)
        nodes.require_network(self.options)
        return nodes.node_data(folder, self.options, partition, num_partitions)

    def load_all(self, folder: Path) -> NodeData:
        """Read all training images as one node, for centralised training. The folder's name is the key."""
        nodes.require_network(self.options)
        return nodes.whole_data(folder, self.options)

    def load_own(self, folder: Path) -> NodeData:
        """Read a deployed node's images. The common test uses only cities named in ``test_cities``."""
        nodes.require_network(self.options)
        return nodes.own_data(folder, self.options)

    def sizes(self, data: NodeData) -> Mapping[str, int]:
        """Return the columns of FedVPR's Table 1. Queries to train on have a positive and a negative among the node's
        images.
        """
        places = _training(data).images.places
        return {
            "sequences": len(places.present),
            "images": len(places),
            "queries": len(places.queries),
            "queries to train on": data.count("train"),
        }

    def remarks(self, folder: Path, num_nodes: int) -> Sequence[str]:
        """Return the number of clients of the split and the share of the sequences that they have."""
        split_data = nodes.federation(folder, self.options, num_nodes)
        tracks = {track for client in split_data.clients for track in client.tracks}
        share = len(tracks) / len(split_data.dataset.training.present)
        return [
            f"the split gives {len(split_data.clients)} clients with {share:.0%} of the sequences; "
            f"{num_nodes} take part"
        ]

    @property
    def validation_metric(self) -> str:
        """Recall@1 on the common validation images. Raises :class:`DataError` if the options hold out none."""
        if not (self.options.validation_clients or self.options.validation_cities):
            raise DataError(
                "vpr.validation-clients = 0 and vpr.validation-cities = '': one of them must hold out validation data "
                "to choose settings, because test data must not choose them; num-nodes must then be the number of the "
                "other clients"
            )
        return "validation.recall_at_1"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`fedapps.tasks.base.Task.without_test`, also without the test images common to all nodes."""
        common = cast(Mapping[str, CommonSet], data.extra["common"])
        kept = {name: images for name, images in common.items() if name != "test"}
        return super().without_test(replace(data, extra={**data.extra, "common": kept}))

    # -- learning ------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean triplet loss of a batch of :meth:`training_batches`."""
        return loss_of_triplets(cast(PlaceNetwork, model), batch, self.options.margin)

    def features(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the descriptors of all images of the triplets, ``[n · images, width]``."""
        return described(cast(PlaceNetwork, model), batch).flatten(0, 1)

    def training_batches(self, model: nn.Module, data: NodeData, batch_size: int) -> Iterator[Batch]:
        """Yield one epoch for training ``model``, whose current weights determine the hardest images."""
        return epoch_of_triplets(
            _training(data),
            cast(PlaceNetwork, model),
            data.splits["train"]["query"],
            batch_size,
            self.options,
            data.key,
        )

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Raise ``NotImplementedError``: mining requires a model (:meth:`training_batches`)."""
        raise NotImplementedError(f"task {self.name!r} mines its batches with the model in training")

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Raise ``NotImplementedError``, as :meth:`batches` does."""
        raise NotImplementedError(f"task {self.name!r} mines its examples with the model in training")

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The images of triplets. Raises :class:`DataError` if their maps are cached."""
        if self.options.maps_megabytes:
            raise DataError(
                f"vpr.maps-megabytes = {self.options.maps_megabytes}: must be 0 for an audit, which searches images"
            )
        return (pixels("images", "images of a place"),)

    def example_losses(self, model: nn.Module, data: NodeData, split: str) -> Tensor:
        """As :meth:`fedapps.tasks.base.Task.example_losses`; an example is a query with its triplet."""
        network = cast(PlaceNetwork, model)
        return _training(data).losses(network, data.splits[split]["query"].numpy(), self.options)

    def references(self, folder: Path) -> Mapping[str, Mapping[str, float]]:
        """The expected recalls of the common test for a database in random order."""
        test = nodes.common_test(folder, self.options)
        recalls = test.random_recalls() if test else {}
        return {RANDOM_ORDER: {f"test.{name}": value for name, value in recalls.items()}} if recalls else {}

    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return recalls in [0, 1]: ``test.recall_at_*`` and ``validation.recall_at_*`` on images common to all nodes.

        Metrics of the node's own images, ``local.*`` or ``train.*``, are added
        (:func:`~fedapps.tasks.vpr.evaluation.own_metrics`) and, with ``final``, images and positions to draw
        (:func:`~fedapps.tasks.vpr.evaluation.traces`).
        """
        network = cast(PlaceNetwork, model)
        metrics: Metrics = {}
        common = cast(Mapping[str, CommonSet], data.extra["common"])
        for name, images in common.items():
            metrics |= {f"{name}.{metric}": value for metric, value in images.tested(network).recalls.items()}
        train, test = (
            data.splits[split]["query"].numpy() if split in data.splits else np.zeros(0, dtype=np.int64)
            for split in ("train", "test")
        )
        training = _training(data)
        metrics |= own_metrics(network, training, train, test, self.options, seed)
        if not final:
            return Evaluation(metrics)
        return Evaluation(
            metrics, traces(network, training.images.places, common.get("test"), self.options.recall_radius)
        )


def _training(data: NodeData) -> TrainingSet:
    return cast(TrainingSet, data.extra["training"])


def _cities(places: Places) -> str:
    return listed(filter(None, places.cities), _LISTED) or "one city"
