"""FedNLP's partition of examples among nodes, beside those of :mod:`fedapps.tasks.partitioners`.

B. Y. Lin et al., FedNLP: Benchmarking Federated Learning Methods for Natural Language Processing Tasks, Findings of
NAACL 2022, https://arxiv.org/abs/2104.08815 ("label distribution shift"), as used by J. Zhang et al., FedVocab.
"""

from collections.abc import Sequence

import numpy as np
from fedapps.tasks.partitioners import Part

from fedapps.base.errors import DataError

#: Names of the partitions: FedNLP's, then those of flwr-datasets.
PARTITIONS = ("fednlp", "iid", "dirichlet", "pathological", "linear")


def dirichlet_shares(
    labels: np.ndarray, num_classes: int, num_nodes: int, alpha: float, rng: np.random.Generator
) -> np.ndarray:
    """Draw the label shares ``q ~ Dir(alpha * p)`` of every node, where p are the shares of all ``labels``.

    Parameters
    ----------
    labels : ndarray [n]
        The class of every example.
    num_classes, num_nodes : int
        The numbers of classes and nodes.
    alpha : float
        Concentration > 0. Smaller values give fewer labels per node; for large values every node has the overall
        shares.
    rng : Generator
        The generator.

    Returns
    -------
    ndarray [num_nodes, num_classes]
        The shares.
    """
    overall = np.bincount(labels, minlength=num_classes) / len(labels)
    present = np.flatnonzero(overall)
    shares = np.zeros((num_nodes, num_classes))
    shares[:, present] = rng.dirichlet(alpha * overall[present], size=num_nodes)
    return shares


def deal(labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> list[Part]:
    """Give every node ``n // num_nodes`` examples with labels in its ``shares [num_nodes, num_classes]``.

    Nodes draw in sequence. If too few examples of a label are left, the other labels replace it in proportion to what
    is left of them. No example is used twice; the last ``n % num_nodes`` examples are not used.

    Returns
    -------
    list of ndarray
        The examples of every node.

    Raises
    ------
    DataError
        There are fewer examples than nodes.
    """
    num_nodes, num_classes = shares.shape
    size = len(labels) // num_nodes
    if size == 0:
        raise DataError(f"{len(labels)} examples are too few for {num_nodes} nodes: decrease num-nodes")
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
    """Divide ``total`` into whole parts in proportion to ``weights`` >= 0, by the method of largest remainders.

    If the weights are whole numbers with a sum of at least ``total``, no part exceeds its weight.
    """
    if total == 0:
        return np.zeros(len(weights), dtype=np.int64)
    exact = total * weights / weights.sum()
    parts: np.ndarray = np.floor(exact).astype(np.int64)
    largest = np.argsort(parts - exact, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    return parts


def label_shares(labels: np.ndarray, parts: Sequence[Part], num_classes: int) -> np.ndarray:
    """Return the label shares of the nodes ``[num_nodes, num_classes]``, by which test examples are partitioned."""
    return np.array([np.bincount(labels[part], minlength=num_classes) / len(part) for part in parts])
