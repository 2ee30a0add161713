"""The examples of a corpus that each node has. The partition is computed once per process."""

from functools import lru_cache

import numpy as np
from fedapps.sim.seeding import generator

from .corpus import Corpus
from .options import Options
from .partition import Part, deal, dirichlet_shares, flower_partition, label_shares


def node_key(partition: int) -> str:
    """Return the key of node ``partition``."""
    return f"client-{partition:03d}"


@lru_cache(maxsize=8)
def partitions(corpus: Corpus, options: Options, num_nodes: int) -> tuple[list[Part], list[Part]]:
    """Return the training and test examples of every node, with equal label shares in both.

    Raises
    ------
    DataError
        There are fewer training or test examples than nodes.
    """
    rng = generator(options.partition_seed, "text.partition", num_nodes)
    labels, classes = corpus.train.labels, len(corpus.classes)
    if options.partition == "fednlp":
        train = deal(labels, dirichlet_shares(labels, classes, num_nodes, options.alpha, rng), rng)
    else:
        train = flower_partition(
            options.partition,
            labels,
            num_nodes,
            alpha=options.alpha,
            classes_per_node=options.classes_per_node,
            seed=options.partition_seed,
        )
    return train, deal(corpus.test.labels, label_shares(labels, train, classes), rng)


def splits_of(train: Part, options: Options, key: str) -> dict[str, Part]:
    """Split a node's examples into those for training and those for validation."""
    order = generator(options.partition_seed, "text.validation", key).permutation(train)
    held = int(options.validation_share * len(train))
    return {"train": np.sort(order[held:]), "validation": np.sort(order[:held])}


def groups_of(corpus: Corpus, train: Part) -> dict[str, str]:
    """Return the label ``most_frequent``: the class of most examples of a node."""
    counts = np.bincount(corpus.train.labels[train], minlength=len(corpus.classes))
    return {"most_frequent": corpus.classes[int(counts.argmax())]}
