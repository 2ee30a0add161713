"""Who gets which examples: FedNLP's Dirichlet partition, and the partitioners of flwr-datasets by name.

B. Y. Lin et al., FedNLP: Benchmarking Federated Learning Methods for Natural Language Processing Tasks, Findings of
NAACL 2022, https://arxiv.org/abs/2104.08815 ("label distribution shift"), which J. Zhang et al., FedVocab, follow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.profiles import DataError

#: Names of the partitions: FedNLP's, then those made by flwr-datasets.
PARTITIONS = ("fednlp", "iid", "dirichlet", "pathological", "linear")

Part = np.ndarray
"""Indices of examples, int64, ascending."""


def dirichlet_shares(
    labels: np.ndarray, num_classes: int, num_nodes: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Label shares ``q ~ Dir(alpha * p)`` of every node ``[num_nodes, num_classes]``, p those of all ``labels``.

    ``alpha`` > 0: the smaller, the fewer labels per node; for large ones every node has the shares of the whole.
    """
    overall = np.bincount(labels, minlength=num_classes) / len(labels)
    present = np.flatnonzero(overall)
    shares = np.zeros((num_nodes, num_classes))
    shares[:, present] = rng.dirichlet(alpha * overall[present], size=num_nodes)
    return shares


def deal(labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> list[Part]:
    """Deal ``n // num_nodes`` examples to every node, its labels in the node's ``shares`` ``[num_nodes, num_classes]``.

    Nodes draw one after another. Where too few examples of a label are left, the rest of the labels makes up for it,
    each in proportion to how much of it is left. No example is dealt twice; the ``n % num_nodes`` examples at the end
    go to nobody. Raises :class:`DataError` where there are fewer examples than nodes.
    """
    num_nodes, num_classes = shares.shape
    size = len(labels) // num_nodes
    if size == 0:
        raise DataError(f"{len(labels)} examples for {num_nodes} nodes leave nodes without any: lower num-nodes")
    pools = [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]
    ends = np.array([len(pool) for pool in pools])
    used = np.zeros(num_classes, dtype=np.int64)
    parts = []
    for share in shares:
        counts = np.minimum(apportion(size, share), ends - used)
        counts += apportion(size - int(counts.sum()), ends - used - counts)
        chosen = [pool[start : start + count] for pool, start, count in zip(pools, used, counts, strict=True)]
        parts.append(np.sort(np.concatenate(chosen)))
        used += counts
    return parts


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """``total`` in whole parts in proportion to ``weights`` >= 0: rounded down, the rest to the largest remainders.

    Where the weights are whole numbers of sum at least ``total``, no part is larger than its weight.
    """
    if total == 0:
        return np.zeros(len(weights), dtype=np.int64)
    exact = total * weights / weights.sum()
    parts: np.ndarray = np.floor(exact).astype(np.int64)
    largest = np.argsort(parts - exact, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    return parts


def label_shares(labels: np.ndarray, parts: Sequence[Part], num_classes: int) -> np.ndarray:
    """The shares of labels that nodes have ``[num_nodes, num_classes]``, for test examples to be dealt likewise."""
    return np.array([np.bincount(labels[part], minlength=num_classes) / len(part) for part in parts])


def flower_partition(
    name: str, labels: np.ndarray, num_nodes: int, *, alpha: float, classes_per_node: int, seed: int
) -> list[Part]:
    """A partition by flwr-datasets: "iid", "dirichlet", "pathological" or "linear" (sizes 1 : 2 : 3 : ...).

    ``alpha`` is for "dirichlet", whose sizes differ; ``classes_per_node`` for "pathological". Raises
    :class:`DataError` when flwr-datasets is not installed or finds no such partition that leaves
    no node without examples.
    """
    try:
        from datasets import Dataset
        from flwr_datasets import partitioner as made
    except ImportError as error:
        raise DataError(
            f"text.partition = {name!r} needs flwr-datasets ({error}): pip install flwr-datasets, or "
            "set text.partition = 'fednlp'"
        ) from error
    makers: dict[str, Callable[[], Any]] = {
        "iid": lambda: made.IidPartitioner(num_nodes),
        "dirichlet": lambda: made.DirichletPartitioner(num_nodes, "label", alpha, min_partition_size=1, seed=seed),
        "pathological": lambda: made.PathologicalPartitioner(num_nodes, "label", classes_per_node, seed=seed),
        "linear": lambda: made.LinearPartitioner(num_nodes),
    }
    # IID and linear partitions take examples as they come.
    order = np.random.default_rng(seed).permutation(len(labels))
    try:
        maker = makers[name]()
        maker.dataset = Dataset.from_dict({"label": labels[order], "row": order})
        parts = [np.sort(np.array(maker.load_partition(node)["row"], dtype=np.int64)) for node in range(num_nodes)]
    except (ValueError, IndexError) as error:  # also where a node would be left without examples
        place = f"text.partition = {name!r} of {len(labels)} examples over {num_nodes} nodes"
        raise DataError(f"{place}: {error}") from error
    return parts
