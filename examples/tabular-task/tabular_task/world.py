"""A federation from a table of scikit-learn: a partition by flwr-datasets, a feature shift per node, CSV files.

Synthetic data are those of Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Section 5.1,
https://arxiv.org/abs/1812.06127. The Dirichlet partition is that of Yurochkin et al., Bayesian Nonparametric Federated
Learning of Neural Networks, ICML 2019, https://arxiv.org/abs/1905.12022.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from datasets import Dataset
from fedapps.tasks.base import DataError
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner, Partitioner
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits

from fedapps.base.seeding import derive_seed

from .options import CLASSES, FEATURES, TabularOptions

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
    for node, (features, labels) in enumerate(_nodes(num_nodes, seed, options)):
        rng = np.random.default_rng(derive_seed(seed, "node", node))
        scale = np.exp(options.shift * rng.standard_normal(features.shape[1]))
        offset = options.shift * rng.standard_normal(features.shape[1])
        table, count = np.column_stack((labels, features * scale + offset)), len(labels)
        held_out = np.isin(np.arange(count), rng.permutation(count)[: round(options.test_fraction * count)])
        for split, rows in (("train", table[~held_out]), ("test", table[held_out])):
            _write(folder / f"node-{node:03d}-{split}.csv", rows)


def synthetic(
    node: int, seed: int, model_spread: float, input_spread: float
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features ``[n, 60]`` and labels ``[n]`` of a node, from its own linear model and its own distribution of inputs.

    n = 50 + ⌊lognormal(4, 2)⌋; y = argmax(W' x + b) with entries of W and b from N(u, 1), u ~ N(0, α²); x ~ N(v, Σ)
    with Σ = diag(j^-1.2), entries of v from N(B, 1), B ~ N(0, β²). α and β are ``model_spread`` and ``input_spread``.
    """
    rng = np.random.default_rng(derive_seed(seed, "synthetic", node))
    width, classes = FEATURES["synthetic"], CLASSES["synthetic"]
    count = 50 + int(rng.lognormal(4, 2))
    weights = rng.normal(model_spread * rng.standard_normal(), 1, (width + 1, classes))
    centre = rng.normal(input_spread * rng.standard_normal(), 1, width)
    inputs = centre + rng.standard_normal((count, width)) * np.arange(1, width + 1) ** -0.6
    return inputs, (inputs @ weights[:-1] + weights[-1]).argmax(axis=1)


def _nodes(
    num_nodes: int, seed: int, options: TabularOptions
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """The features and labels of each node."""
    if options.dataset == "synthetic":
        for node in range(num_nodes):
            yield synthetic(node, seed, options.model_spread, options.input_spread)
        return
    features, labels = load_table(options.dataset)
    for part in partition(labels, num_nodes, options, seed):
        yield features[part], labels[part]


def _write(path: Path, rows: NDArray[np.float64]) -> None:
    header = ",".join(["label", *(f"x{index}" for index in range(rows.shape[1] - 1))])
    np.savetxt(path, rows, fmt=["%d"] + ["%.6g"] * (rows.shape[1] - 1), delimiter=",", header=header, comments="")
