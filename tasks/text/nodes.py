"""The part of a corpus that one node has, as numbers. Data common to all nodes are computed once per process.

With a frozen embedding, the lowest frozen layers of a transformer give the same states in every step, because frozen
modules have no dropout. They are computed once for each text of a node, and the common test texts once for each
process, when they are first read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics, NodeData
from fedapps.tasks.partitioners import (
    Part,
    by_stage,
    deal,
    dirichlet_shares,
    flower_partition,
    hold_out_each,
    label_shares,
)
from torch import Tensor
from torch.nn.functional import normalize

from fedapps.base.errors import DataError
from fedapps.base.seeding import generator, torch_seed

from .corpus import Corpus, Examples
from .encoder_network import Transformer
from .options import STATES, Options, PrivateWords
from .transformer import cached_by_files, load_tokenizer, transformer
from .vocabulary import PieceVocabulary, TokenizerVocabulary, Vocabulary, WordVocabulary, padded

_AT_ONCE = 128
#: What an encoder raises that needs other inputs, or other modules.
_UNSUITABLE = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
_ROUNDING = 1e-4  # by which numbers may differ that are computed in another order, relative to the largest


@cached_by_files(4)
def check_encoder(options: Options) -> None:
    """Compute two texts with an encoder as a run does.

    Raises
    ------
    DataError
        The encoder is not available (:func:`~fedapps.tasks.text.transformer.transformer`), cannot compute from
        embeddings and a mask, reads beyond the end of a text, or gives something else from the states above its frozen
        layers.
    """
    with torch_seed(0, "text", "check"), torch.no_grad():
        model = transformer(replace(options, precision="float32"), 2).eval()
        texts = padded(load_tokenizer(options.model).encode(["x 1 " * options.length, "x"], options.length))
        ids, length = texts["ids"], texts["length"]
        kind = f"{options.model!r} ({type(model.encoder).__name__})"
        other = "use an encoder such as BERT, DistilBERT, RoBERTa, MPNet or ModernBERT"
        try:
            together, alone = model(ids, length), model(ids[1:, : int(length[1])], length[1:])
        except _UNSUITABLE as error:
            raise DataError(
                f"text.model = {kind} needs more than the embeddings of a text and a mask "
                f"({error or type(error).__name__}); {other}"
            ) from error
        if not _close(together[1:], alone, 100 * _ROUNDING):
            raise DataError(
                f"text.model = {kind} reads beyond the end of a text, so that its answers depend on the other texts of "
                f"a batch; {other}"
            )
        if not options.cached_states:
            return
        advice = "set text.cached-states = false"
        try:
            above = model(ids, length, model.frozen_states(ids, length))
        except _UNSUITABLE as error:
            raise DataError(
                f"text.cached-states = true: {kind} cannot compute its upper layers alone ({error}); {advice}"
            ) from error
        if not _close(above, together, _ROUNDING):
            raise DataError(
                f"text.cached-states = true: {kind} gives something else when its upper layers are computed alone; "
                f"{advice}"
            )


def _close(states: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return bool((states - wanted).abs().max() <= tolerance * wanted.abs().max())


def with_states(examples: Batch, options: Options) -> Batch:
    """Return examples (``ids``, ``length``) with the tensor :data:`~fedapps.tasks.text.options.STATES`.

    The states are float32 ``[n, L, width]``, and zeros beyond the end of a text. Without ``options.cached_states``, the
    examples are returned as they are.
    """
    return _WithStates(examples, options) if options.cached_states else examples


class _WithStates(Mapping[str, Tensor]):
    """Examples with their states. Data are also read where nothing is trained, and then no states are computed."""

    def __init__(self, examples: Batch, options: Options) -> None:
        self._examples = examples
        self._options = options

    def __getitem__(self, name: str) -> Tensor:
        return self._states if name == STATES else self._examples[name]

    def __contains__(self, name: object) -> bool:
        return name == STATES or name in self._examples

    def __iter__(self) -> Iterator[str]:
        yield from (*self._examples, STATES)

    def __len__(self) -> int:
        return len(self._examples) + 1

    @cached_property
    def _states(self) -> Tensor:
        model, length = _model(replace(self._options, partition_seed=0)), self._examples["length"]
        states = torch.zeros(*self._examples["ids"].shape, model.classifier.in_features)
        for rows, ids in _by_length(self._examples):
            frozen = model.frozen_states(ids, length[rows])
            inside = torch.arange(ids.shape[1]) < length[rows][:, None]
            states[rows, : ids.shape[1]] = frozen * inside[..., None]
        return states


@torch.no_grad()
def mean_vectors(examples: Batch, options: Options) -> Tensor:
    """Return the mean state of each text in the pretrained encoder, scaled to norm 1, float32 ``[n, width]``."""
    plain = replace(options, frozen_layers=0, frozen_embedding=False, cached_states=False, adapter="")
    model = _model(replace(plain, pooling="mean", partition_seed=0))
    vectors = torch.zeros(len(examples["ids"]), model.classifier.in_features)
    for rows, ids in _by_length(examples):
        vectors[rows] = normalize(model.vectors(ids, examples["length"][rows]))
    return vectors


def _by_length(examples: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """The rows and ids of texts of similar length, for little padding."""
    for rows in torch.split(examples["length"].argsort(stable=True), _AT_ONCE):
        yield rows, examples["ids"][rows, : int(examples["length"][rows].max())]


@cached_by_files(1)
def _model(options: Options) -> Transformer:
    """A classifier of which only the pretrained frozen part is used."""
    with torch_seed(0, "text", "states"):
        return transformer(options, 2).eval()


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
        train = deal(labels, dirichlet_shares(labels, classes, num_nodes, options.alpha, rng), rng, "training texts")
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
    test = deal(corpus.test.labels, label_shares(labels, train, classes), rng, "test texts")
    if options.test_examples:
        test = [np.sort(rng.permutation(part)[: options.test_examples]) for part in test]
    return train, test


#: Splits a node's examples, by its key, into those for training and those for validation.
Split = Callable[[Part, Options, str], dict[str, Part]]


def splits_of(train: Part, options: Options, key: str) -> dict[str, Part]:
    """Split the examples of one of several nodes."""
    order = generator(options.partition_seed, "text.validation", key).permutation(train)
    held = int(options.validation_share * len(train))
    used = held + options.train_examples if options.train_examples else len(order)
    return {"train": np.sort(order[held:used]), "validation": np.sort(order[:held])}


def own_splits(train: Part, options: Options, key: str) -> dict[str, Part]:
    """Split the examples of a node's own files, which can grow: what trained is never held out later."""
    kept, validation = hold_out_each(train, options.validation_share, options.partition_seed, f"text.{key}")
    drawn = generator(options.partition_seed, "text.used", key).permutation(kept)[: options.train_examples or None]
    return {"train": np.sort(drawn), "validation": validation}


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
        of a tokenizer stay unchanged; with ``ALL``, the node's are those of its training texts (:class:`.OwnRows`).
    known : tuple of str
        The words, or the numbers of the pieces, of the node that come first, as the node has vectors of them already.
    """

    public: Vocabulary | None
    kept: PrivateWords
    known: tuple[str, ...] = ()

    def own(self, texts: Sequence[str], options: Options) -> WordVocabulary | None:
        """Return the vocabulary of a node with these training texts, ``None`` if it is that of all nodes."""
        if self.public is None:
            own = WordVocabulary.of(texts, options.vocabulary_size, options.min_count)
            return WordVocabulary(tuple(dict.fromkeys((*self.known, *own.words)))) if self.known else own
        if self.kept is PrivateWords.DIGITS and isinstance(self.public, WordVocabulary):
            return self.public.with_digits_of(texts, self.known)
        return None


@dataclass(frozen=True, eq=False)
class CommonTest:
    """Test examples that are common to all nodes and stored once.

    ``translation`` int32 ``[words]`` maps their ids to those of one node; ``None`` if all nodes have the same ids.
    ``scores`` has what the model tested last gives, by its :func:`~fedapps.tasks.base.fingerprint`; all nodes with the
    same ids have the same mapping. ``stages`` are the examples of each stage, if there are several.
    """

    examples: Batch
    translation: Tensor | None
    scores: dict[bytes, Metrics] = field(default_factory=dict)
    stages: tuple["CommonTest", ...] = ()

    def translated_by(self, translation: Tensor) -> "CommonTest":
        """Return the examples for a node with other ids."""
        stages = tuple(stage.translated_by(translation) for stage in self.stages)
        return replace(self, translation=translation, stages=stages)


def node_data(corpus: Corpus, options: Options, words: Words, partition: int, num_partitions: int) -> NodeData:
    """Return the data of node ``partition`` of ``num_partitions``.

    Raises
    ------
    DataError
        There are fewer training or test examples than nodes.
    """
    train, test = partitions(corpus, options, num_partitions)
    key = node_key(partition)
    return _node(key, corpus, options, words, splits_of, train[partition], test[partition], common=True)


def whole_data(corpus: Corpus, options: Options, words: Words, key: str, split: Split) -> NodeData:
    """Return the whole corpus as one node, which has all test examples."""
    train, test = np.arange(len(corpus.train.texts)), np.arange(len(corpus.test.texts))
    return _node(key, corpus, options, words, split, train, test, common=False)


@lru_cache(maxsize=8)
def shared_vocabulary(corpus: Corpus, size: int, min_count: int) -> WordVocabulary:
    """Return the words of all training texts (:meth:`~fedapps.tasks.text.vocabulary.WordVocabulary.of`)."""
    return WordVocabulary.of(corpus.train.texts, size, min_count)


@dataclass(frozen=True, eq=False)
class _Encoded:
    vocabulary: Vocabulary
    examples: Batch


def _node(
    key: str, corpus: Corpus, options: Options, words: Words, split: Split, train: Part, test: Part, *, common: bool
) -> NodeData:
    kept = split(train, options, key)
    own_words = words.own(corpus.train.texts_at(kept["train"]), options)
    public = None if own_words else words.public
    vocabulary = own_words or public
    assert vocabulary is not None
    splits = {
        name: _examples(corpus.train, rows, vocabulary, options.length) for name, rows in kept.items() if len(rows)
    }
    if words.kept is PrivateWords.ALL and isinstance(vocabulary, TokenizerVocabulary):
        vocabulary = PieceVocabulary.of(vocabulary, splits["train"]["ids"], splits["train"]["length"], words.known)
    extra: dict[str, object] = {"vocabulary": vocabulary, "classes": corpus.classes}
    if len(test):
        tested = _encoded_test(corpus, public, options)
        translation = (
            own_words.translation(tested.vocabulary)
            if own_words and isinstance(tested.vocabulary, WordVocabulary)
            else None
        )
        splits["test"] = translated(_chosen(tested.examples, test), translation)
        if common:
            test_of_all = _common_test(corpus, public, options)
            extra["common_test"] = test_of_all if translation is None else test_of_all.translated_by(translation)
    stages = [
        {name: with_states(examples, options) for name, examples in stage.items()}
        for stage in by_stage(f"the training texts of {key}", splits, options.stage_of("text", len(corpus.classes)))
    ]
    return NodeData(key, stages[0], groups_of(corpus, train), extra, stages if options.stages > 1 else ())


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
    parts = by_stage("the common test", {"train": drawn}, options.stage_of("text", len(corpus.classes)))
    stages = [CommonTest(with_states(part["train"], options), None) for part in parts]
    return CommonTest(with_states(drawn, options), None, stages=tuple(stages) if options.stages > 1 else ())


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
