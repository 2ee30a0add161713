"""A federation from a table of scikit-learn: a partition by flwr-datasets, a feature shift per node, CSV files.

The Dirichlet partition is that of Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks,
ICML 2019, https://arxiv.org/abs/1905.12022.
"""

from pathlib import Path

import numpy as np
from datasets import Dataset
from fedapps.sim.seeding import derive_seed
from fedapps.tasks.base import DataError
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, Partitioner
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

from .options import TabularOptions

#: The fewest examples of a node; some of them are held out for testing.
LEAST = 12
_LOADERS = {"digits": load_digits, "breast-cancer": load_breast_cancer}


def load_table(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features ``[examples, features]`` with mean 0 and variance 1 (or all 0), and labels ``[examples]`` from 0."""
    found = _LOADERS[name]()
    spread = found.data.std(axis=0)
    return (found.data - found.data.mean(axis=0)) / np.where(spread > 0, spread, 1), found.target.astype(np.int64)


def partition(labels: NDArray[np.int64], num_nodes: int, options: TabularOptions, seed: int) -> list[NDArray[np.int64]]:
    """The examples of each node, as ascending indices; every example belongs to one node.

    Raises
    ------
    DataError
        The partitioner finds no partition in which every node has 12 examples.
    """
    maker: Partitioner
    order = np.random.default_rng(derive_seed(seed, "order")).permutation(len(labels))
    if options.partition == "dirichlet":
        maker = DirichletPartitioner(
            num_nodes, "label", options.alpha, min_partition_size=LEAST, seed=derive_seed(seed, "partition") % 2**32
        )
    else:
        maker = IidPartitioner(num_nodes)
    maker.dataset = Dataset.from_dict({"label": labels[order], "row": order})
    try:
        parts = [np.sort(np.array(maker.load_partition(node)["row"], dtype=np.int64)) for node in range(num_nodes)]
    except ValueError as error:
        raise DataError(
            f"tabular.alpha = {options.alpha:g}: no partition of {len(labels)} examples over {num_nodes} nodes gives "
            f"every node {LEAST} examples; raise tabular.alpha or lower num-nodes ({error})"
        ) from error
    if min(map(len, parts)) < LEAST:
        raise DataError(f"num-nodes = {num_nodes}: must leave every node {LEAST} of the {len(labels)} examples")
    return parts


def write_world(folder: Path, num_nodes: int, seed: int, options: TabularOptions) -> None:
    """Write ``node-<k>-train.csv`` and ``node-<k>-test.csv`` for each node; see :mod:`tabular_task.files`."""
    features, labels = load_table(options.dataset)
    for node, part in enumerate(partition(labels, num_nodes, options, seed)):
        rng = np.random.default_rng(derive_seed(seed, "node", node))
        scale = np.exp(options.shift * rng.standard_normal(features.shape[1]))
        offset = options.shift * rng.standard_normal(features.shape[1])
        table = np.column_stack((labels[part], features[part] * scale + offset))
        held_out = np.isin(np.arange(len(part)), rng.permutation(len(part))[: round(options.test_fraction * len(part))])
        for split, rows in (("train", table[~held_out]), ("test", table[held_out])):
            _write(folder / f"node-{node:03d}-{split}.csv", rows)


def _write(path: Path, rows: NDArray[np.float64]) -> None:
    header = ",".join(["label", *(f"x{index}" for index in range(rows.shape[1] - 1))])
    np.savetxt(path, rows, fmt=["%d"] + ["%.6g"] * (rows.shape[1] - 1), delimiter=",", header=header, comments="")
