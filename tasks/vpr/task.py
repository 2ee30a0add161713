"""The task "vpr": recognise the place of an image with triplets that each node mines in its own images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

import numpy as np
from fedapps.tasks.base import Batch, DataError, Evaluation, MetricRule, Metrics, NodeData, Task
from fedapps.tasks.model_folder import field_of
from fedapps.tasks.profiles import check_partition
from torch import Tensor, nn

from fedapps.base.text_files import shown

from .evaluation import AMONG, CommonSet, own_metrics, traces
from .networks import (
    FROZEN,
    Normalisation,
    PlaceNetwork,
    check_network,
    network_of,
    normalisation_for,
    unloaded_network,
)
from .nodes import common_test, federation, node_data, own_data, require_network, whole_data
from .profile import RANDOM_ORDER, VprProfiles
from .training_set import TrainingSet, described, epoch_of_triplets, loss_of_triplets


class VprTask(VprProfiles, Task):
    """Visual place recognition with triplets that each node mines in its own images (FedVPR [1]_).

    A node has sequences of queries and of the database. An example is a query with a positive and a negative among its
    images. The splits hold ``query`` int64 ``[n]``; "test" exists if the node holds out queries. ``NodeData.extra``
    holds ``training``, the node's :class:`~fedapps.tasks.vpr.training_set.TrainingSet`, and ``common``, the sets on
    which all nodes' models are evaluated, by name (:class:`~fedapps.tasks.vpr.evaluation.CommonSet`). Because the
    images of an epoch depend on the model, only :meth:`training_batches` yields batches.

    Only ``trained.*``, ``pooling.*`` and ``projection.*`` are shared. ``frozen.*`` never changes and is the same on all
    nodes, from the weight file or the run's seed.

    .. [1] Dutto et al., Collaborative Visual Place Recognition through Federated Learning, 2024,
       https://arxiv.org/abs/2404.13324.
    """

    vectorises: ClassVar[bool] = False
    trained_model: ClassVar[str] = "fedapps.tasks.vpr.trained:VprTrained"
    metric_means: ClassVar[Mapping[str, MetricRule]] = {
        f"{name}.recall_at_{n}": "uniform" for name in ("test", "validation") for n in AMONG
    }

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
        return unloaded_network(self.options, cast(Normalisation, kind))

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
        require_network(self.options)
        return node_data(folder, self.options, partition, num_partitions)

    def load_all(self, folder: Path) -> NodeData:
        """Read all training images as one node, for centralised training. The folder's name is the key."""
        require_network(self.options)
        return whole_data(folder, self.options)

    def load_own(self, folder: Path) -> NodeData:
        """Read a deployed node's images. The common test uses only cities named in ``test_cities``."""
        require_network(self.options)
        return own_data(folder, self.options)

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
        found = federation(folder, self.options, num_nodes)
        given = {track for client in found.clients for track in client.tracks}
        share = len(given) / len(found.dataset.training.present)
        return [
            f"the split gives {len(found.clients)} clients with {share:.0%} of the sequences; {num_nodes} take part"
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

    def references(self, folder: Path) -> Mapping[str, Mapping[str, float]]:
        """The expected recalls of the common test for a database in random order."""
        test = common_test(folder, self.options)
        found = test.random_recalls() if test else {}
        return {RANDOM_ORDER: {f"test.{name}": value for name, value in found.items()}} if found else {}

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
            metrics |= {f"{name}.{metric}": value for metric, value in images.recalls(network).items()}
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
