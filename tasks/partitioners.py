"""Partitions of one data set among nodes, as of flwr-datasets and of FedNLP, and into stages of classes; label shares.

FedNLP: B. Y. Lin et al., FedNLP: Benchmarking Federated Learning Methods for Natural Language Processing Tasks,
Findings of NAACL 2022, https://arxiv.org/abs/2104.08815 ("label distribution shift"), as used by J. Zhang et al.,
FedVocab.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.base.errors import DataError
from fedapps.base.options import option
from fedapps.base.seeding import generator

from .profiles import Batch, NodeData

#: Indices of examples, int64, ascending.
Part = np.ndarray
_MARK = "_own_label_shares"
_ADDED = "_added_logits"
#: How often a Dirichlet partition is drawn at most until every node has enough examples.
_DRAWS = 11


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    """Options of tasks whose classes can arrive in stages, as in class-incremental learning with one output per class
    (G. van de Ven and A. Tolias, Three Scenarios for Continual Learning, 2019, https://arxiv.org/abs/1904.07734).
    """

    partition_seed: int = option(0, "Seed of the partition, of drawn stages and of the examples held out", minimum=0)
    stages: int = option(
        1,
        "Stages in which the classes arrive, equally many in each, so that nodes learn them one after another; 1 = all "
        "at once",
        minimum=1,
        data=True,
    )
    stage_order: str = option(
        "classes",
        "Order in which classes arrive in stages: classes, that of their numbers; drawn, by partition-seed",
        choices=("classes", "drawn"),
        data=True,
    )

    def stage_of(self, task: str, classes: int) -> np.ndarray:
        """Return the stage of each class, counted from 0, int64 ``[classes]``; every stage has equally many.

        Raises
        ------
        DataError
            The classes cannot be divided so. ``task`` is the prefix of the keys, for the message.
        """
        if classes % self.stages:
            allowed = ", ".join(str(number) for number in range(1, classes + 1) if classes % number == 0)
            raise DataError(f"{task}.stages = {self.stages}: must divide the {classes} classes evenly ({allowed})")
        order = np.arange(classes)
        if self.stage_order == "drawn":
            order = generator(self.partition_seed, "stages").permutation(classes)
        return np.argsort(order) * self.stages // classes


def by_stage(where: str, splits: Mapping[str, Batch], stage_of: np.ndarray) -> list[Mapping[str, Batch]]:
    """Return the splits of each stage, without empty ones; of a single stage, ``splits`` as they are.

    Parameters
    ----------
    where : str
        Whose splits they are, for the message.
    splits : mapping of str to Batch
        With the tensor ``label`` int64 ``[n]``.
    stage_of : ndarray int64 [classes]
        The stage of each class (:meth:`StageOptions.stage_of`).

    Raises
    ------
    DataError
        There are several stages, and "train" has no examples of one of them.
    """
    if not stage_of.any():
        return [splits]
    stages: list[Mapping[str, Batch]] = []
    for stage in range(stage_of.max() + 1):
        of_stage: dict[str, Batch] = {}
        for split, examples in splits.items():
            rows = torch.from_numpy(stage_of[examples["label"].numpy()] == stage)
            if rows.any():
                of_stage[split] = {name: tensor[rows] for name, tensor in examples.items()}
        if "train" not in of_stage:
            classes = ", ".join(map(str, np.flatnonzero(stage_of == stage)))
            raise DataError(
                f"{where}: no examples of stage {stage + 1}, the classes {classes} (counted from 0): give more "
                "examples, divide them more evenly, as with partition = 'iid', or decrease stages or num-nodes"
            )
        stages.append(of_stage)
    return stages


def stages_in(data: NodeData, stage_of: np.ndarray) -> np.ndarray:
    """Return the stages of the examples of a node's splits, int64: one number for the data of a stage."""
    return np.unique(np.concatenate([stage_of[batch["label"].cpu().numpy()] for batch in data.splits.values()]))


def right_in_stage(logits: Tensor, labels: Tensor, stage_of: np.ndarray) -> Tensor:
    """Return for each example whether its class has the largest logit among the classes of its stage, bool ``[n]``.

    This is task-incremental learning (van de Ven and Tolias): whoever asks says the stage.
    """
    stages = torch.from_numpy(stage_of).to(labels.device)
    return logits.masked_fill(stages != stages[labels][:, None], -torch.inf).argmax(dim=1) == labels


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


def for_own_label_shares(model: nn.Module) -> nn.Module:
    """Let a classifier always predict as within :func:`own_label_shares`, and return it."""
    setattr(model, _MARK, True)
    return model


def predicts_for_own_shares(model: nn.Module) -> bool:
    """Whether the model is used within :func:`own_label_shares`, or always predicts so."""
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
    """Partition examples as flwr-datasets does: the same seed gives the same parts.

    It is not used itself, because its import takes a second of processor time.

    Parameters
    ----------
    task : str
        The prefix of the key ``partition``, for messages.
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
        A node would have no examples, or "pathological" needs more classes, or more examples of a class, than exist.
    """
    if name == "dirichlet" and num_nodes * min_examples > len(labels):
        raise DataError(
            f"{task}.partition = 'dirichlet': {len(labels)} examples are too few for {num_nodes} nodes with at least "
            f"{min_examples} each: decrease num-nodes{f' or {task}.min-examples' if min_examples > 1 else ''}"
        )
    rng = np.random.default_rng(seed)
    # IID and linear partitions keep the order of the examples.
    order = np.random.default_rng(seed).permutation(len(labels))
    rows = np.arange(len(labels))
    rows_by_class = [np.flatnonzero(labels[order] == label) for label in np.unique(labels)]
    split = f"{task}.partition = {name!r} of {len(labels)} examples over {num_nodes} nodes"
    if name == "dirichlet":
        draws = [_dirichlet(rows_by_class, num_nodes, alpha, rng)]
        while min(map(len, draws[-1])) < min_examples and len(draws) < _DRAWS:
            draws.append(_dirichlet(rows_by_class, num_nodes, alpha, rng))
        enough = min(map(len, draws[-1])) >= min_examples
        parts = [np.sort(order[part]) for part in draws[-1 if enough else 0]]
        return topped_up(parts, min_examples, np.random.default_rng(seed))
    if name == "iid":
        parts = np.array_split(rows, num_nodes)
    elif name == "linear":
        units = np.arange(1.0, num_nodes + 1)
        sizes = (units / units.sum() * len(rows)).astype(np.int64)
        parts = np.split(rows, np.cumsum(sizes)[:-1])
    else:
        parts = _pathological(split, rows_by_class, num_nodes, classes_per_node, rng)
    if not all(map(len, parts)):
        raise DataError(f"{split}: a node would have no examples")
    return [np.sort(order[part]) for part in parts]


def _dirichlet(rows_by_class: Sequence[Part], num_nodes: int, alpha: float, rng: np.random.Generator) -> list[Part]:
    """Divide the examples of each class in shares ~ Dir(alpha) among all nodes; some may get none."""
    pieces = []
    for rows in rows_by_class:
        ends = np.cumsum(rng.dirichlet(np.full(num_nodes, float(alpha)))) * len(rows)
        pieces.append(np.split(rows, ends.astype(int)[:-1]))
    return [np.concatenate(of_node) for of_node in zip(*pieces, strict=True)]


def _pathological(
    split: str, rows_by_class: Sequence[Part], num_nodes: int, classes_per_node: int, rng: np.random.Generator
) -> list[Part]:
    """Give each node ``classes_per_node`` classes: the first in turn, the others drawn. A class is divided evenly."""
    count = len(rows_by_class)
    if classes_per_node > count:
        raise DataError(f"{split}: {classes_per_node} classes per node are more than the {count} that there are")
    classes_by_node = []
    for node in range(num_nodes):
        classes = [node % count]
        while len(classes) < classes_per_node:
            if (drawn := int(rng.choice(count, size=1)[0])) not in classes:
                classes.append(drawn)
        classes_by_node.append(classes)
    parts: list[list[Part]] = [[] for _ in range(num_nodes)]
    for label, rows in enumerate(rows_by_class):
        owners = [node for node, classes in enumerate(classes_by_node) if label in classes]
        if len(owners) > len(rows):
            raise DataError(f"{split}: {len(owners)} nodes would share the {len(rows)} examples of a class")
        for node, piece in zip(owners, np.array_split(rows, max(1, len(owners))), strict=False):
            parts[node].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


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


def deal(labels: np.ndarray, shares: np.ndarray, rng: np.random.Generator, what: str = "examples") -> list[Part]:
    """Give every node ``n // num_nodes`` examples with labels in its ``shares [num_nodes, num_classes]``.

    Nodes draw in sequence. If too few examples of a label are left, the other labels replace it in proportion to what
    is left of them. No example is used twice; the last ``n % num_nodes`` examples are not used. ``what`` are the
    examples, for the message.

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
        raise DataError(f"{len(labels)} {what} are too few for {num_nodes} nodes: decrease num-nodes")
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


def hold_out_each(rows: Part, share: float, seed: int, name: str) -> tuple[Part, Part]:
    """As :func:`hold_out`, by a draw for each example: where others follow behind, none that stayed is held out.

    Where that holds out none, but the share is that of an example, one is; one stays.
    """
    draws = generator(seed, name).random(len(rows))
    order = rows[np.argsort(draws, kind="stable")]
    count = min(max(int((draws < share).sum()), min(1, int(share * len(rows)))), max(len(rows) - 1, 0))
    return np.sort(order[count:]), np.sort(order[:count])


def label_shares(labels: np.ndarray, parts: Sequence[Part], num_classes: int) -> np.ndarray:
    """Return the label shares of the nodes ``[num_nodes, num_classes]``, by which test examples are partitioned."""
    return np.array([np.bincount(labels[part], minlength=num_classes) / len(part) for part in parts])
