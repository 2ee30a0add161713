"""The part of a corpus that one node has, as numbers. Data common to all nodes are computed once per process."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics, NodeData
from fedapps.tasks.partitioners import Part, flower_partition
from torch import Tensor

from fedapps.base.seeding import generator

from .corpus import Corpus, Examples
from .options import Options, PrivateWords
from .partition import deal, dirichlet_shares, label_shares
from .pieces import PieceVocabulary
from .states import with_states
from .vocabulary import TokenizerVocabulary, Vocabulary, WordVocabulary, padded


def node_key(partition: int) -> str:
    """Return the key of node ``partition``."""
    return f"client-{partition:03d}"


@lru_cache(maxsize=8)
def partitions(corpus: Corpus, options: Options, num_nodes: int) -> tuple[list[Part], list[Part]]:
    """Return the training and test examples of every node, with equal label shares in both; of the test examples, as
    many as ``options.test_examples``.

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
            "text",
            options.partition,
            labels,
            num_nodes,
            alpha=options.alpha,
            classes_per_node=options.classes_per_node,
            seed=options.partition_seed,
        )
    test = deal(corpus.test.labels, label_shares(labels, train, classes), rng)
    if options.test_examples:
        test = [np.sort(rng.permutation(part)[: options.test_examples]) for part in test]
    return train, test


def splits_of(train: Part, options: Options, key: str) -> dict[str, Part]:
    """Split a node's examples into those for training and those for validation."""
    order = generator(options.partition_seed, "text.validation", key).permutation(train)
    held = int(options.validation_share * len(train))
    used = held + options.train_examples if options.train_examples else len(order)
    return {"train": np.sort(order[held:used]), "validation": np.sort(order[:held])}


def groups_of(corpus: Corpus, train: Part) -> dict[str, str]:
    """Return the label ``most_frequent``: the class of most examples of a node."""
    counts = np.bincount(corpus.train.labels[train], minlength=len(corpus.classes))
    return {"most_frequent": corpus.classes[int(counts.argmax())]}


@dataclass(frozen=True)
class Words:
    """The source of a node's vocabulary.

    Attributes
    ----------
    public : Vocabulary or None
        The vocabulary of all nodes; None if each node has its own.
    kept : PrivateWords
        With ``DIGITS``, each node replaces the digit words of ``public`` by those of its own training texts. The tokens
        of a tokenizer stay unchanged; with ``ALL``, the node's are those of its training texts (:mod:`.pieces`).
    """

    public: Vocabulary | None
    kept: PrivateWords

    def own(self, texts: Sequence[str], options: Options) -> WordVocabulary | None:
        """Return the vocabulary of a node with these training texts, ``None`` if it is that of all nodes."""
        if self.public is None:
            return WordVocabulary.of(texts, options.vocabulary_size, options.min_count)
        if self.kept is PrivateWords.DIGITS and isinstance(self.public, WordVocabulary):
            return self.public.with_digits_of(texts)
        return None


@dataclass(frozen=True, eq=False)
class CommonTest:
    """Test examples that are common to all nodes and stored once.

    ``translation`` int32 ``[words]`` maps their ids to those of one node; ``None`` if all nodes have the same ids.
    ``scores`` has what the model tested last gives, by its :func:`~fedapps.tasks.base.fingerprint`; all nodes with the
    same ids have the same mapping.
    """

    examples: Batch
    translation: Tensor | None
    scores: dict[bytes, Metrics] = field(default_factory=dict)


def node_data(corpus: Corpus, options: Options, words: Words, partition: int, num_partitions: int) -> NodeData:
    """Return the data of node ``partition`` of ``num_partitions``.

    Raises
    ------
    DataError
        There are fewer training or test examples than nodes.
    """
    train, test = partitions(corpus, options, num_partitions)
    return _node(node_key(partition), corpus, options, words, train[partition], test[partition], common=True)


def whole_data(corpus: Corpus, options: Options, words: Words, key: str) -> NodeData:
    """Return the whole corpus as one node, which has all test examples."""
    train, test = np.arange(len(corpus.train.texts)), np.arange(len(corpus.test.texts))
    return _node(key, corpus, options, words, train, test, common=False)


@lru_cache(maxsize=8)
def shared_vocabulary(corpus: Corpus, size: int, min_count: int) -> WordVocabulary:
    """Return the words of all training texts (:meth:`~fedapps.tasks.text.vocabulary.WordVocabulary.of`)."""
    return WordVocabulary.of(corpus.train.texts, size, min_count)


@dataclass(frozen=True, eq=False)
class _Encoded:
    vocabulary: Vocabulary
    examples: Batch


def _node(
    key: str, corpus: Corpus, options: Options, words: Words, train: Part, test: Part, *, common: bool
) -> NodeData:
    kept = splits_of(train, options, key)
    own = words.own(corpus.train.texts_at(kept["train"]), options)
    public = None if own else words.public
    vocabulary = own or public
    assert vocabulary is not None
    splits = {
        name: with_states(_examples(corpus.train, rows, vocabulary, options.length), options)
        for name, rows in kept.items()
        if len(rows)
    }
    if words.kept is PrivateWords.ALL and isinstance(vocabulary, TokenizerVocabulary):
        vocabulary = PieceVocabulary.of(vocabulary, splits["train"]["ids"], splits["train"]["length"])
    extra: dict[str, object] = {"vocabulary": vocabulary, "classes": corpus.classes}
    if len(test):
        tested = _encoded_test(corpus, public, options)
        translation = (
            own.translation(tested.vocabulary) if own and isinstance(tested.vocabulary, WordVocabulary) else None
        )
        splits["test"] = translated(with_states(_chosen(tested.examples, test), options), translation)
        if common:
            test_of_all = _common_test(corpus, public, options)
            extra["common_test"] = test_of_all if translation is None else replace(test_of_all, translation=translation)
    return NodeData(key, splits, groups_of(corpus, train), extra)


@lru_cache(maxsize=8)
def _encoded_test(corpus: Corpus, public: Vocabulary | None, options: Options) -> _Encoded:
    """All test examples in the public vocabulary or, without one, in a vocabulary of all their words."""
    vocabulary = public or WordVocabulary.of(corpus.test.texts)
    every = np.arange(len(corpus.test.texts))
    return _Encoded(vocabulary, _examples(corpus.test, every, vocabulary, options.length))


@lru_cache(maxsize=8)
def _common_test(corpus: Corpus, public: Vocabulary | None, options: Options) -> CommonTest:
    """``global_examples`` random test examples; all of them if it is 0 or exceeds their number."""
    tested = _encoded_test(corpus, public, options).examples
    rows = common_rows(len(tested["label"]), options.global_examples, options.partition_seed)
    drawn = tested if len(rows) == len(tested["label"]) else _chosen(tested, rows)
    return CommonTest(with_states(drawn, options), None)


def common_rows(total: int, count: int, seed: int) -> Part:
    """Return which of ``total`` test examples are common to all nodes: ``count`` random ones, or all for 0 or more."""
    if count == 0 or count >= total:
        return np.arange(total)
    return np.sort(generator(seed, "text.common").permutation(total)[:count])


def _examples(examples: Examples, rows: Part, vocabulary: Vocabulary, max_length: int) -> Batch:
    encoded = padded(vocabulary.encode(examples.texts_at(rows), max_length))
    return {**encoded, "label": torch.from_numpy(examples.labels[rows])}


def _chosen(examples: Batch, rows: Part) -> Batch:
    return {name: tensor[torch.from_numpy(rows)] for name, tensor in examples.items()}


def translated(batch: Batch, translation: Tensor | None) -> Batch:
    """Return ``batch`` with translated ids."""
    return batch if translation is None else {**batch, "ids": translation[batch["ids"].long()]}
