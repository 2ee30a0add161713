"""Partitions of labelled examples among nodes by flwr-datasets, for all tasks that divide one data set."""

from collections.abc import Callable
from typing import Any
from warnings import catch_warnings

import numpy as np

from fedapps.base.errors import DataError, need

Part = np.ndarray
"""Indices of examples, int64, ascending."""


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
    from flwr_datasets import partitioner as made

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
        place = f"{task}.partition = {name!r} of {len(labels)} examples over {num_nodes} nodes"
        advice = f"; increase {task}.alpha, or decrease num-nodes" if name == "dirichlet" else ""
        raise DataError(f"{place}: {error}{advice}") from error
