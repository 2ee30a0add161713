"""Partitions of one data set among nodes, by flwr-datasets and of FedNLP, and the shares of labels of a node.

FedNLP: B. Y. Lin et al., FedNLP: Benchmarking Federated Learning Methods for Natural Language Processing Tasks,
Findings of NAACL 2022, https://arxiv.org/abs/2104.08815 ("label distribution shift"), as used by J. Zhang et al.,
FedVocab.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any
from warnings import catch_warnings

import numpy as np
from torch import Tensor, nn

from fedapps.base.errors import DataError, require_package
from fedapps.base.seeding import generator

#: Indices of examples, int64, ascending.
Part = np.ndarray
_MARK = "_own_label_shares"
_ADDED = "_added_logits"


@contextmanager
def own_label_shares(model: nn.Module) -> Iterator[None]:
    """Let a classifier predict for examples with the label shares of its node while the context lasts.

    A task evaluates examples of the node's own distribution in this context, and examples common to all nodes outside
    of it. Only a model that was trained with adjusted logits distinguishes the two: its logits f_y are those of
    balanced labels, and f_y + τ log π_y those of the node's label shares π (Hong et al., Disentangling Label
    Distribution for Long-tailed Visual Recognition, CVPR 2021, Section 3.2, https://arxiv.org/abs/2012.00321; τ = 1
    there).
    """
    setattr(model, _MARK, True)
    try:
        yield
    finally:
        delattr(model, _MARK)


def predicts_for_own_shares(model: nn.Module) -> bool:
    """Whether the model is used within :func:`own_label_shares`."""
    return getattr(model, _MARK, False)


def adjust_logits(model: nn.Module, added: Tensor) -> None:
    """Let a classifier add τ log π to its logits in training, and within :func:`own_label_shares`.

    Parameters
    ----------
    model : Module
        Changed in place; it returns logits ``[b, classes]``.
    added : Tensor float64 [classes]
        τ log π.
    """

    def adjusted(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits + added.to(logits) if module.training or predicts_for_own_shares(module) else logits

    setattr(model, _ADDED, added)
    model.register_forward_hook(adjusted)


def added_logits(model: nn.Module) -> Tensor | None:
    """What :func:`adjust_logits` lets a model add; ``None`` for other models."""
    return getattr(model, _ADDED, None)


def _flower_partitioners() -> Any:
    """The module ``flwr_datasets.partitioner`` alone: the package around it imports plots, which takes a second."""
    package = "flwr_datasets"
    spec = find_spec(package)
    if package in sys.modules or spec is None:
        return import_module(f"{package}.partitioner")
    sys.modules[package] = module_from_spec(spec)  # its code does not run
    try:
        return import_module(f"{package}.partitioner")
    finally:
        del sys.modules[package]


def flower_partition(
    task: str,
    name: str,
    labels: np.ndarray,
    num_nodes: int,
    *,
    alpha: float,
    classes_per_node: int,
    min_examples: int = 1,
    seed: int,
) -> list[Part]:
    """Partition examples with flwr-datasets.

    Parameters
    ----------
    task : str
        The prefix of the key ``partition``, for messages, and the name of the extra that installs flwr-datasets.
    name : str
        "iid", "dirichlet", "pathological" or "linear" (sizes 1 : 2 : 3 : ...).
    labels : ndarray [n]
        The class of every example.
    num_nodes : int
        The number of nodes.
    alpha : float
        Concentration of "dirichlet", whose parts differ in size.
    classes_per_node : int
        Classes per node of "pathological", exactly. All classes are used if there are as many nodes as classes.
    min_examples : int
        Examples that every node has at least, for "dirichlet". It is drawn up to eleven times, as Q. Li et al. draw
        until every node has ten (Federated Learning on Non-IID Data Silos, ICDE 2022, Section IV,
        https://arxiv.org/abs/2102.02079). If no draw has them, as with 100 nodes and 14 examples each, nodes with too
        few examples of the first draw get random ones of the largest nodes (:func:`topped_up`), which no paper does.
    seed : int
        The seed.

    Raises
    ------
    DataError
        flwr-datasets is not installed, or finds no partition with examples on every node.
    """
    if name == "dirichlet" and num_nodes * min_examples > len(labels):
        raise DataError(
            f"{task}.partition = 'dirichlet': {len(labels)} examples are too few for {num_nodes} nodes with at least "
            f"{min_examples} each: decrease num-nodes{f' or {task}.min-examples' if min_examples > 1 else ''}"
        )
    require_package("flwr_datasets", task, f"{task}.partition = {name!r}")
    from datasets import Dataset

    made = _flower_partitioners()
    makers: dict[str, Callable[[], Any]] = {
        "iid": lambda: made.IidPartitioner(num_nodes),
        "dirichlet": lambda: made.DirichletPartitioner(
            num_nodes, "label", alpha, min_partition_size=min_examples, seed=seed
        ),
        "first dirichlet": lambda: made.DirichletPartitioner(
            num_nodes, "label", alpha, min_partition_size=0, seed=seed
        ),
        "pathological": lambda: made.PathologicalPartitioner(
            num_nodes, "label", classes_per_node, "first-deterministic", seed=seed
        ),
        "linear": lambda: made.LinearPartitioner(num_nodes),
    }
    # IID and linear partitions keep the order of the examples.
    order = np.random.default_rng(seed).permutation(len(labels))

    def drawn(name: str) -> list[Part]:
        maker = makers[name]()
        maker.dataset = Dataset.from_dict({"label": labels[order], "row": order})
        parts = (maker.load_partition(node).with_format("arrow")[:]["row"] for node in range(num_nodes))
        return [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]

    try:
        with catch_warnings(action="ignore", category=UserWarning):  # of draws that are repeated
            return drawn(name)
    except (ValueError, IndexError) as error:  # flwr-datasets raises these also for a node without examples
        if name != "dirichlet":
            split = f"{task}.partition = {name!r} of {len(labels)} examples over {num_nodes} nodes"
            raise DataError(f"{split}: {error}") from error
    return topped_up(drawn("first dirichlet"), min_examples, np.random.default_rng(seed))


def topped_up(parts: Sequence[Part], least: int, rng: np.random.Generator) -> list[Part]:
    """Move random examples, one at a time, from the node that has most to the nodes with fewer than ``least``.

    ``parts`` have at least ``least`` examples per node together. Nodes that have enough receive nothing, and none is
    left with fewer than ``least``.
    """
    moved = [part.tolist() for part in parts]
    for part in moved:
        while len(part) < least:
            largest = max(moved, key=len)
            part.append(largest.pop(int(rng.integers(len(largest)))))
    return [np.sort(np.array(part, dtype=np.int64)) for part in moved]


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
        drawn = [pool[start : start + count] for pool, start, count in zip(pools, used, counts, strict=True)]
        parts.append(np.sort(np.concatenate(drawn)))
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


def hold_out(rows: Part, share: float, seed: int, name: str) -> tuple[Part, Part]:
    """Divide examples at random into those that stay and those that are held out, ``share`` of them, rounded down.

    The draw depends on ``seed`` and on ``name``, which says what is held out.
    """
    order = generator(seed, name).permutation(rows)
    count = int(share * len(rows))
    return np.sort(order[count:]), np.sort(order[:count])


def label_shares(labels: np.ndarray, parts: Sequence[Part], num_classes: int) -> np.ndarray:
    """Return the label shares of the nodes ``[num_nodes, num_classes]``, by which test examples are partitioned."""
    return np.array([np.bincount(labels[part], minlength=num_classes) / len(part) for part in parts])
