"""Two Gaussian blobs, rotated on every node."""

from dataclasses import dataclass

import numpy as np
import torch
from fedapps.tasks.base import DataError, Evaluation, NodeData, Task
from fedapps.tasks.options import option
from torch import nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class BlobsOptions:
    """The world of the blobs."""

    examples: int = option(60, "examples per node; a third of them tests", minimum=3)
    rotation: float = option(30.0, "degrees by which the blobs of neighbouring nodes differ", minimum=0, maximum=180)


class BlobsTask(Task):
    """Tell two Gaussian blobs apart, which are rotated on every node."""

    name = "blobs"
    Options = BlobsOptions
    headline = ("test.accuracy",)

    def build_model(self):
        return nn.Linear(2, 2)

    def make_world(self, folder, num_nodes, seed):
        for node in range(num_nodes):
            rng = np.random.default_rng((seed, node))
            angle, label = np.deg2rad(node * self.options.rotation), rng.integers(2, size=self.options.examples)
            centre = np.outer(2 * label - 1, [np.cos(angle), np.sin(angle)])
            np.savetxt(
                folder / f"blob-{node:03d}.csv", np.column_stack((label, centre + rng.normal(size=centre.shape)))
            )

    def load_node(self, folder, partition, num_partitions):
        return self._read(folder, slice(partition, partition + 1))

    def load_all(self, folder):
        return self._read(folder, slice(None))

    def loss(self, model, batch):
        return cross_entropy(model(batch["x"]), batch["label"])

    @torch.no_grad()
    def evaluate(self, model, data, *, seed, final):
        test = data.splits["test"]
        accuracy = (model(test["x"]).argmax(dim=1) == test["label"]).float().mean()
        return Evaluation({"test.accuracy": float(accuracy)})

    def _read(self, folder, chosen):
        files = sorted(folder.glob("blob-*.csv"))[chosen]
        if not files:
            raise DataError(f"{folder}: expected files blob-*.csv, one per node")
        rows = torch.from_numpy(np.concatenate([np.loadtxt(file, ndmin=2) for file in files]))
        columns = {"x": rows[:, 1:].float(), "label": rows[:, 0].long()}
        held_out = torch.arange(len(rows)) % 3 == 0
        splits = {
            "train": {name: column[~held_out] for name, column in columns.items()},
            "test": {name: column[held_out] for name, column in columns.items()},
        }
        return NodeData("+".join(file.stem for file in files), splits)
