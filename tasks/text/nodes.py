"""One node's part of a corpus, in numbers; what is the same for all nodes is made once per process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from sim.seeding import generator
from tasks.base import Batch, NodeData

from .batches import CommonTest, translated
from .corpus import Corpus, Examples
from .options import Options
from .partition import Part
from .parts import groups_of, node_key, partitions, splits_of
from .scope import Kept
from .vocabulary import Vocabulary, WordVocabulary, padded


@dataclass(frozen=True)
class Words:
    """Where a node's vocabulary comes from.

    ``public`` is the vocabulary of all nodes, ``None`` where each has its own; with ``kept`` ``DIGITS`` each has the
    digit words of its own training texts in the place of those of ``public``. Tokens of a tokenizer stay as they are.
    """

    public: Vocabulary | None
    kept: Kept

    def own(self, texts: Sequence[str], options: Options) -> WordVocabulary | None:
        """The vocabulary of a node with these training texts, ``None`` where it is that of all nodes."""
        if self.public is None:
            return WordVocabulary.of(texts, options.vocabulary_size, options.min_count)
        if self.kept is Kept.DIGITS and isinstance(self.public, WordVocabulary):
            return self.public.with_digits_of(texts)
        return None


def node_data(corpus: Corpus, options: Options, words: Words, partition: int, num_partitions: int) -> NodeData:
    """Node ``partition`` of ``num_partitions``.

    Raises ``DataError`` when there are fewer training or test examples than nodes.
    """
    train, test = partitions(corpus, options, num_partitions)
    return _node(node_key(partition), corpus, options, words, train[partition], test[partition], common=True)


def whole_data(corpus: Corpus, options: Options, words: Words, key: str) -> NodeData:
    """All of a corpus as one node, of which all test examples are its own."""
    train, test = np.arange(len(corpus.train.texts)), np.arange(len(corpus.test.texts))
    return _node(key, corpus, options, words, train, test, common=False)


@lru_cache(maxsize=8)
def shared_vocabulary(corpus: Corpus, size: int, min_count: int) -> WordVocabulary:
    """The words of all training texts (:meth:`~tasks.text.vocabulary.WordVocabulary.of`)."""
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
        name: _examples(corpus.train, rows, vocabulary, options.length) for name, rows in kept.items() if len(rows)
    }
    extra: dict[str, object] = {"vocabulary": vocabulary}
    if len(test):
        tested = _encoded_test(corpus, public, options.length)
        translation = (
            own.translation(tested.vocabulary) if own and isinstance(tested.vocabulary, WordVocabulary) else None
        )
        splits["test"] = translated(_chosen(tested.examples, test), translation)
        if common:
            drawn = _common_examples(corpus, public, options.length, options.global_examples, options.partition_seed)
            extra["common_test"] = CommonTest(drawn, translation)
    return NodeData(key, splits, groups_of(corpus, train), extra)


@lru_cache(maxsize=8)
def _encoded_test(corpus: Corpus, public: Vocabulary | None, max_length: int) -> _Encoded:
    """All test examples in the public vocabulary, or in one that has all their words."""
    vocabulary = public or WordVocabulary.of(corpus.test.texts)
    every = np.arange(len(corpus.test.texts))
    return _Encoded(vocabulary, _examples(corpus.test, every, vocabulary, max_length))


@lru_cache(maxsize=8)
def _common_examples(corpus: Corpus, public: Vocabulary | None, max_length: int, count: int, seed: int) -> Batch:
    """``count`` of the test examples, drawn at random; all for 0 or where there are no more."""
    tested = _encoded_test(corpus, public, max_length).examples
    total = len(tested["label"])
    if count == 0 or count >= total:
        return tested
    return _chosen(tested, np.sort(generator(seed, "text.common").permutation(total)[:count]))


def _examples(examples: Examples, rows: Part, vocabulary: Vocabulary, max_length: int) -> Batch:
    encoded = padded(vocabulary.encode(examples.texts_at(rows), max_length))
    return {**encoded, "label": torch.from_numpy(examples.labels[rows])}


def _chosen(examples: Batch, rows: Part) -> Batch:
    return {name: tensor[torch.from_numpy(rows)] for name, tensor in examples.items()}
