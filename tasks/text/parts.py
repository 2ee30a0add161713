"""Which examples of a corpus each node has; what is the same for all nodes is made once per process."""

from functools import lru_cache

import numpy as np

from sim.seeding import generator

from .corpus import Corpus
from .options import Options
from .partition import Part, deal, dirichlet_shares, flower_partition, label_shares


def node_key(partition: int) -> str:
    """The key of one of several nodes."""
    return f"client-{partition:03d}"


@lru_cache(maxsize=8)
def partitions(corpus: Corpus, options: Options, num_nodes: int) -> tuple[list[Part], list[Part]]:
    """Training and test examples of every node, the latter with the label shares that the former came to have.

    Raises ``DataError`` when there are fewer training or test examples than nodes.
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
    """Of a node's examples ``train`` those to train on and those held out for its validation."""
    order = generator(options.partition_seed, "text.validation", key).permutation(train)
    held = int(options.validation_share * len(train))
    return {"train": np.sort(order[held:]), "validation": np.sort(order[:held])}


def groups_of(corpus: Corpus, train: Part) -> dict[str, str]:
    """The label that most of a node's examples have."""
    counts = np.bincount(corpus.train.labels[train], minlength=len(corpus.classes))
    return {"most_frequent": corpus.classes[int(counts.argmax())]}
