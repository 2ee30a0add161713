"""Classification of tables over a federation with label skew, feature shift, or another true model on each node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from fedapps.tasks.base import Batch, DataError, Evaluation, NodeData, Task
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .files import node_names, read_nodes
from .options import CLASSES, FEATURES, TabularOptions


class TabularTask(Task):
    """Classify rows of scikit-learn's digits or breast cancer table, or synthetic ones, with a small perceptron."""

    name: ClassVar[str] = "tabular"
    Options: ClassVar[type[Any]] = TabularOptions
    headline: ClassVar[tuple[str, ...]] = ("test.accuracy", "test.loss")
    # torch.func.vmap does not support batch normalisation with running statistics.
    vectorises: ClassVar[bool] = False

    def __init__(self, options: TabularOptions | None = None) -> None:
        super().__init__(options or TabularOptions())

    def build_model(self) -> nn.Module:
        chosen: TabularOptions = self.options
        if not chosen.hidden:
            return nn.Sequential(nn.Linear(FEATURES[chosen.dataset], CLASSES[chosen.dataset]))
        layers: list[nn.Module] = [nn.Linear(FEATURES[chosen.dataset], chosen.hidden)]
        layers += [nn.BatchNorm1d(chosen.hidden)] if chosen.batch_norm else []
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(chosen.hidden, CLASSES[chosen.dataset]))

    @property
    def world_options(self) -> dict[str, object]:
        """The options of the data; those of the model make no other world."""
        chosen: TabularOptions = self.options
        names = ("dataset", "partition", "alpha", "shift", "model_spread", "input_spread", "test_fraction")
        return {name: getattr(chosen, name) for name in names}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        from .world import write_world  # nodes with their own files need neither scikit-learn nor flwr-datasets

        write_world(folder, num_nodes, seed, self.options)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        names = node_names(folder)
        if len(names) < num_partitions or not 0 <= partition < num_partitions:
            raise DataError(
                f"{folder}: no tables for node {partition} of {num_partitions}: set num-nodes = {len(names)} or fewer"
            )
        return self._read(folder, names[partition : partition + 1])

    def load_all(self, folder: Path) -> NodeData:
        return self._read(folder, node_names(folder))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cross_entropy(model(batch["x"]), batch["label"])

    def training_batches(self, model: nn.Module, data: NodeData, batch_size: int) -> Iterator[Batch]:
        """One epoch, without a last batch of a single example under batch normalisation: it has no variance."""
        least = 2 if self.options.batch_norm and self.options.hidden else 1
        return (b for b in self.batches(data, "train", max(batch_size, least)) if len(b["label"]) >= least)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return the accuracy and the loss on both splits."""
        device, metrics = next(model.parameters()).device, {}
        for split, batch in data.splits.items():
            label = batch["label"].to(device)
            scores = model(batch["x"].to(device))
            metrics[f"{split}.accuracy"] = float((scores.argmax(dim=1) == label).double().mean())
            metrics[f"{split}.loss"] = float(cross_entropy(scores, label))
        return Evaluation(metrics)

    def _read(self, folder: Path, names: list[str]) -> NodeData:
        return read_nodes(folder, names, FEATURES[self.options.dataset], CLASSES[self.options.dataset])
