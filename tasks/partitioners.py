"""Partitions of one data set among nodes by flwr-datasets, and the shares of labels of a node."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any
from warnings import catch_warnings

import numpy as np
from torch import Tensor, nn

from fedapps.base.errors import DataError, need

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


Part = np.ndarray


"""Indices of examples, int64, ascending."""


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
        Examples that every node has at least, for "dirichlet", which is drawn up to eleven times.
    seed : int
        The seed.

    Raises
    ------
    DataError
        flwr-datasets is not installed, or finds no partition with examples on every node.
    """
    need("flwr_datasets", task, f"{task}.partition = {name!r}")
    from datasets import Dataset

    made = _flower_partitioners()
    makers: dict[str, Callable[[], Any]] = {
        "iid": lambda: made.IidPartitioner(num_nodes),
        "dirichlet": lambda: made.DirichletPartitioner(
            num_nodes, "label", alpha, min_partition_size=min_examples, seed=seed
        ),
        "pathological": lambda: made.PathologicalPartitioner(
            num_nodes, "label", classes_per_node, "first-deterministic", seed=seed
        ),
        "linear": lambda: made.LinearPartitioner(num_nodes),
    }
    # IID and linear partitions keep the order of the examples.
    order = np.random.default_rng(seed).permutation(len(labels))
    try:
        with catch_warnings(action="ignore", category=UserWarning):  # of draws that are repeated
            maker = makers[name]()
            maker.dataset = Dataset.from_dict({"label": labels[order], "row": order})
            return [np.sort(np.array(maker.load_partition(node)["row"], dtype=np.int64)) for node in range(num_nodes)]
    except (ValueError, IndexError) as error:  # flwr-datasets raises these also for a node without examples
        split = f"{task}.partition = {name!r} of {len(labels)} examples over {num_nodes} nodes"
        advice = f"; increase {task}.alpha, or decrease num-nodes" if name == "dirichlet" else ""
        raise DataError(f"{split}: {error}{advice}") from error
