"""The task "vpr": find the place where a picture was taken, with nodes that mine triplets in their own pictures."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
from torch import Tensor, nn

from tasks.base import Batch, Evaluation, MetricRule, Metrics, NodeData, Task

from .evaluation import AMONG, CommonSet, own_metrics
from .fitting import check_network
from .networks import FROZEN, BatchNorms, PlaceNetwork, place_network
from .nodes import federation, node_data, own_data, whole_data
from .profile import VprProfiles, check_partition
from .traces import traces
from .training_set import TrainingSet, epoch_of_triplets, loss_of_triplets


class VprTask(VprProfiles, Task):
    """Visual place recognition by triplets that each node mines in its own pictures (FedVPR [1]_).

    A node has sequences of queries and of the database. An example is a query with a positive and a negative among
    them: the splits hold ``query`` int64 ``[n]``, and "test" exists where a node keeps some to itself.
    ``NodeData.extra`` holds ``training``, the node's :class:`~tasks.vpr.training_set.TrainingSet`, and ``common``, by
    name the sets that are tested on all together (:class:`~tasks.vpr.evaluation.CommonSet`). Which pictures an epoch
    compares depends on the model, so that there are batches for a model only (:meth:`training_batches`).

    ``trained.*`` and ``pooling.*`` of a model need travel; ``frozen.*`` never changes and is the same on all nodes,
    from the file of weights or the run's seed.

    .. [1] Dutto et al., Collaborative Visual Place Recognition through Federated Learning, 2024,
       https://arxiv.org/abs/2404.13324.
    """

    headline: ClassVar[tuple[str, ...]] = tuple(f"test.recall_at_{n}" for n in AMONG)
    vectorises: ClassVar[bool] = False
    fixed: ClassVar[tuple[str, ...]] = (FROZEN,)
    metric_means: ClassVar[Mapping[str, MetricRule]] = {
        f"{name}.recall_at_{n}": "uniform" for name in ("test", "validation") for n in AMONG
    }

    def build_model(self) -> PlaceNetwork:
        """The network; what the file of weights does not have is drawn."""
        chosen = self.options
        return place_network(
            chosen.backbone,
            chosen.pooling,
            weights=chosen.weights_file,
            batch_norms=cast(BatchNorms, chosen.batch_norms),
            train_all=chosen.train_all,
        )

    # -- data ----------------------------------------------------------------------------------------------

    @property
    def longest_epoch(self) -> int:
        return self.options.queries_per_epoch

    def check_nodes(self, num_nodes: int) -> None:
        """Raises :class:`DataError` for weights, or a size of pictures, that do not fit the network."""
        chosen = self.options
        check_network(chosen.backbone, chosen.pooling, chosen.weights_file, chosen.size)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """Client ``partition`` of the split, the clients being in the order of their keys.

        Raises :class:`DataError` when the split gives another number of clients than ``num_partitions``.
        """
        check_partition(partition, num_partitions)
        return node_data(folder, self.options, partition, num_partitions)

    def load_all(self, folder: Path) -> NodeData:
        """All pictures to train with: centralised training. The folder's name is the key."""
        return whole_data(folder, self.options)

    def load_own(self, folder: Path) -> NodeData:
        """A deployed node's own pictures; cities for the common test are only those named in ``test_cities``."""
        return own_data(folder, self.options)

    def sizes(self, data: NodeData) -> Mapping[str, int]:
        """As FedVPR's Table 1; queries to train on have a positive and a negative among the node's own pictures."""
        places = _training(data).pictures.places
        return {
            "sequences": len(places.present),
            "images": len(places),
            "queries": len(places.queries),
            "queries to train on": data.count("train"),
        }

    def remarks(self, folder: Path, num_nodes: int) -> Sequence[str]:
        """How many clients the split gives, and how much of the pictures is in their hands."""
        found = federation(folder, self.options, num_nodes)
        given = {track for client in found.clients for track in client.tracks}
        share = len(given) / len(found.dataset.training.present)
        return [
            f"the split gives {len(found.clients)} clients with {share:.0%} of the sequences; {num_nodes} take part"
        ]

    # -- learning ------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The mean triplet loss of a batch of :meth:`training_batches`."""
        return loss_of_triplets(cast(PlaceNetwork, model), batch, self.options.margin)

    def training_batches(self, model: nn.Module, data: NodeData, batch_size: int) -> Iterator[Batch]:
        """One epoch for training ``model``, whose weights of the moment say which pictures are hard to tell apart."""
        return epoch_of_triplets(
            _training(data),
            cast(PlaceNetwork, model),
            data.splits["train"]["query"],
            batch_size,
            self.options,
            data.key,
        )

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Raises ``NotImplementedError``: triplets are mined with a model (:meth:`training_batches`)."""
        raise NotImplementedError(f"task {self.name!r} mines its batches with the model that is trained")

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """As :meth:`batches`."""
        raise NotImplementedError(f"task {self.name!r} mines its examples with the model that is trained")

    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Recalls in [0, 1]: ``test.recall_at_*`` and ``validation.recall_at_*`` on pictures common to all nodes.

        To these come ``local.*`` or ``train.*`` of the node's own (:func:`~tasks.vpr.evaluation.own_metrics`), and at
        the end pictures and positions to look at (:func:`~tasks.vpr.traces.traces`).
        """
        network = cast(PlaceNetwork, model)
        metrics: Metrics = {}
        common = cast(Mapping[str, CommonSet], data.extra["common"])
        for name, pictures in common.items():
            metrics |= {f"{name}.{metric}": value for metric, value in pictures.recalls(network).items()}
        train, test = (
            data.splits[split]["query"].numpy() if split in data.splits else np.zeros(0, dtype=np.int64)
            for split in ("train", "test")
        )
        training = _training(data)
        metrics |= own_metrics(network, training, train, test, self.options, seed)
        if not final:
            return Evaluation(metrics)
        return Evaluation(
            metrics, traces(network, training.pictures.places, common.get("test"), self.options.recall_radius)
        )


def _training(data: NodeData) -> TrainingSet:
    return cast(TrainingSet, data.extra["training"])
