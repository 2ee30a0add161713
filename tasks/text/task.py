"""The task "text": classify texts on nodes whose words and embeddings may stay private."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from fedapps.tasks.base import Batch, DataError, Evaluation, MetricRule, Metrics, NodeData, Task
from fedapps.tasks.label_shares import own_label_shares
from fedapps.tasks.model_folder import FILES, field_of, texts_of
from fedapps.tasks.profiles import check_partition
from fedapps.tasks.tensors import fingerprint
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from .corpus import Corpus, read_corpus
from .floors import node_floors
from .networks import TextClassifier, recurrent_model, shaped_lstm
from .nodes import CommonTest, Words, node_data, shared_vocabulary, translated, whole_data
from .options import STATES, PrivateWords, private_words, vocabulary_source
from .pieces import PUBLIC, PieceVocabulary, keep_own_rows
from .profile import TextProfiles, folder_key, node_key
from .states import check_encoder
from .transformer import (
    digest_of,
    facts_of,
    frozen_below,
    frozen_of,
    load_tokenizer,
    longest_of,
    shaped,
    transformer_model,
)
from .vocabulary import RESERVED, SPECIAL, TOKENIZER, Vocabulary, WordVocabulary, read_tokenizer, read_vocabulary
from .word_vectors import assigned_start, node_vectors, vectors_are_here

CHUNK = 128  # examples per batch in evaluation


class TextTask(TextProfiles, Task):
    """Classify texts with an embedding that may stay on the node (FedVocab [1]_).

    A node has some of the examples, with its own label shares. Under a method that keeps ``embedding.*`` private
    (:meth:`under`) it also has its own vocabulary, so embeddings have different shapes on different nodes, while
    ``encoder.*`` and ``classifier.*`` (and a transformer's ``pre_classifier.*``) have the same shapes everywhere.
    Without :meth:`under` nothing is private.

    Splits hold ``ids`` int32 ``[n, L]``, ``length`` int64 ``[n]`` and ``label`` int64 ``[n]``; "test" are test examples
    with the node's label shares. ``NodeData.extra`` holds the ``vocabulary`` and, for one of several nodes,
    ``common_test``, the test examples common to all nodes (:class:`~fedapps.tasks.text.nodes.CommonTest`).

    .. [1] Zhang et al., FedVocab: Privacy-Preserving Federated Text Classification with Private Vocabularies, 2022.
    """

    vectorises: ClassVar[bool] = False  # vmap does not support LSTMs
    metric_means: ClassVar[Mapping[str, MetricRule]] = {
        "test.global_accuracy": "geometric",
        "test.local_accuracy": "uniform",
    }
    trained_model: ClassVar[str] = "fedapps.tasks.text.trained:TextTrained"
    audit_subject: ClassVar[str] = "fedapps.tasks.text.privacy:TextSubject"

    # -- models --------------------------------------------------------------------------------------------

    def build_model(self) -> TextClassifier:
        """Return the server's model, whose shared parameters have the shapes and initial values of every node's.

        If nodes have different vocabularies, the server's embedding corresponds to none of them.
        """
        words = self._public_vocabulary(None) or WordVocabulary(SPECIAL)
        if self._kept is PrivateWords.DIGITS and isinstance(words, WordVocabulary):
            words = words.with_digits_of(())
        return self._model(words, None)

    def build_model_for(self, data: NodeData) -> TextClassifier:
        """Return the node's model, whose embedding has a row for each of its words."""
        return self._model(_vocabulary(data), data.key)

    def _model(self, vocabulary: Vocabulary, key: str | None) -> TextClassifier:
        build = recurrent_model if self.options.recurrent else transformer_model
        return build(self.options, self.privacy, self.layout.classes, vocabulary, key)

    @property
    def _kept(self) -> PrivateWords:
        """The words whose vectors never leave the node and are trained there."""
        return PrivateWords.NONE if self.options.frozen_embedding else private_words(self.options, self.privacy)

    def _public_vocabulary(self, key: str | None) -> Vocabulary | None:
        """The vocabulary that depends on no texts, or ``None``; ``key`` is the node's."""
        chosen, source = self.options, vocabulary_source(self.options, self.privacy)
        if source == "tokenizer":
            encoder = assigned_start(chosen, self.privacy, key) if key is not None else ""
            return _tokens(encoder or chosen.model, chosen.length)
        if source == "file":
            option = "text.vocabulary-file" if chosen.vocabulary_file else "text.glove"
            path = Path(chosen.words_file).expanduser()
            return read_vocabulary(path, chosen.vocabulary_size, option, chosen.embedding_width)
        return None

    @property
    def fixed(self) -> tuple[str, ...]:
        """The frozen layers, what is frozen below adapters, and the rows of a private embedding that a node's texts do
        not use (:mod:`.pieces`).
        """
        if self.options.recurrent:
            return ()
        below = frozen_below(self.options, self.privacy) if self.options.adapter else ()
        return (PUBLIC, *frozen_of(self.options), *below)

    @property
    def fixed_digest(self) -> str:
        """The digest of the pretrained encoder, if a shared part of it is frozen."""
        chosen = self.options
        frozen = chosen.adapter or chosen.frozen_layers or chosen.frozen_embedding
        return digest_of(chosen.model) if frozen and chosen.weights == "pretrained" else ""

    @property
    def fixed_source(self) -> str:
        return f"text.model = {self.options.model!r}"

    # -- trained models ------------------------------------------------------------------------------------

    def facts(self, data: NodeData | None) -> Mapping[str, Any]:
        """Return ``classes``, the ``words`` of the vocabulary, and the configurations of a transformer.

        Raises
        ------
        DataError
            The classes or the words are found in the data, and there are none.
        """
        classes = self.layout.labels if data is None else cast(tuple[str, ...], data.extra["classes"])
        vocabulary = self._public_vocabulary(None) if data is None else _vocabulary(data)
        if not classes or vocabulary is None:
            raise DataError("the classes and the words of the model are those of the nodes' texts, which are not here")
        facts: dict[str, Any] = {"classes": list(classes)}
        if isinstance(vocabulary, PieceVocabulary):
            facts["pieces"] = list(vocabulary.own)
        if isinstance(vocabulary, WordVocabulary):
            facts["words"] = list(vocabulary.words)
        if not self.options.recurrent:
            facts["encoder"] = facts_of(self.options.model)
            if data is not None and (dealt := assigned_start(self.options, self.privacy, data.key)):
                facts |= {"embedding": facts_of(dealt), "tokenizer": dealt}
        return facts

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> TextClassifier:
        if not ("words" in facts or (files is not None and (files / TOKENIZER).is_file())):
            raise DataError(f"facts have no words, and the folder has no {FILES}/{TOKENIZER}")
        words, classes = self.vocabulary_of(facts, files), len(texts_of(facts, "classes", least=2))
        if self.options.recurrent:
            return shaped_lstm(self.options, self.privacy, classes, words.words)
        embedding = field_of(facts, "embedding", dict) if "embedding" in facts else None
        encoder = field_of(facts, "encoder", dict)
        model = shaped(encoder, embedding, words.words, self.options, self._kept, classes)
        if "pieces" in facts:
            pieces = field_of(facts, "pieces", list)
            if not all(type(piece) is int and 0 <= piece < len(words.words) for piece in pieces):
                raise DataError(f"pieces: must be numbers from 0 to {len(words.words) - 1}")
            if any(one >= other for one, other in pairwise(pieces)):
                raise DataError("pieces: must be in ascending order")
            keep_own_rows(model.embedding, tuple(pieces))
        return model

    def vocabulary_of(self, facts: Mapping[str, Any], files: Path | None) -> Vocabulary:
        """Return the vocabulary of a trained model, from its facts, its files, or else the file of the options."""
        if "words" in facts:
            words = texts_of(facts, "words", distinct=True)
            if words[: len(SPECIAL)] != SPECIAL:
                raise DataError(f"words: must begin with {', '.join(SPECIAL)}")
            return WordVocabulary(words)
        if files is not None and (files / TOKENIZER).is_file():
            return read_tokenizer(files / TOKENIZER)
        if "tokenizer" in facts:
            return _tokens(facts["tokenizer"], self.options.length)
        return cast(Vocabulary, self._public_vocabulary(None))

    def read_with(
        self, vocabulary: Vocabulary, classes: tuple[str, ...], folder: Path, partition: int | None, num_partitions: int
    ) -> NodeData:
        """Read a folder, or one node's part of it, in the vocabulary and with the classes of a trained model.

        Raises
        ------
        DataError
            As :meth:`load_node`, or a label is none of the classes.
        """
        words, layout = Words(vocabulary, PrivateWords.NONE), replace(self.layout, labels=classes)
        if partition is None:
            return whole_data(read_corpus(folder, layout, only_test=True), self.options, words, folder_key(folder))
        check_partition(partition, num_partitions)
        return node_data(read_corpus(folder, layout), self.options, words, partition, num_partitions)

    # -- data ----------------------------------------------------------------------------------------------

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if the encoder is not available or cannot be used
        (:func:`~fedapps.tasks.text.states.check_encoder`)."""
        if not self.options.recurrent:
            _tokens(self.options.model, self.options.length)
            check_encoder(self.options)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        corpus = self.corpus(folder, partition, num_partitions)
        return node_data(corpus, self.options, self._words(corpus, node_key(partition)), partition, num_partitions)

    def load_all(self, folder: Path) -> NodeData:
        """Read the whole folder, whose name is the key. A node's own folder may lack the test file."""
        corpus = read_corpus(folder, self.layout)
        key = folder_key(folder)
        return whole_data(corpus, self.options, self._words(corpus, key), key)

    def load_own(self, folder: Path) -> NodeData:
        """Read a node's own folder. Raise :class:`DataError` for a vocabulary of all nodes' texts, which is unknown."""
        self.check_own_words()
        return self.load_all(folder)

    def _words(self, corpus: Corpus, key: str) -> Words:
        chosen = self.options
        if vocabulary_source(chosen, self.privacy) == "shared":
            return Words(shared_vocabulary(corpus, chosen.vocabulary_size, chosen.min_count), self._kept)
        return Words(self._public_vocabulary(key), self._kept)

    @property
    def validation_metric(self) -> str:
        """The accuracy on the nodes' own validation texts. Raises :class:`DataError` if they hold out none."""
        if not self.options.validation_share:
            raise DataError(
                "text.validation-share = 0.0: must be above 0 to choose settings on validation data, because test data "
                "must not choose them"
            )
        return "validation.accuracy"

    def without_test(self, data: NodeData) -> NodeData:
        """As :meth:`fedapps.tasks.base.Task.without_test`, also without the test texts common to all nodes."""
        extra = {name: value for name, value in data.extra.items() if name != "common_test"}
        return super().without_test(replace(data, extra=extra))

    def node_references(self, folder: Path, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
        """The floors of :func:`~fedapps.tasks.text.floors.node_floors`."""
        return node_floors(self.corpus(folder, 0, num_nodes), self.options, num_nodes)

    # -- learning ------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        return self.layout.classes

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(_logits(model, batch), batch["label"])

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield the same batches as other tasks, each padded only to its own longest text."""
        yield from _trimmed(data.splits[split], torch.randperm(data.count(split)), batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield texts of similar length together, which minimises padding."""
        yield from _by_length(data.splits[split], batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return the accuracy and the number of examples of every split that exists.

        ``test.local_*`` are test examples with the node's label shares, ``test.global_*`` those common to all nodes,
        and ``validation.*`` the node's own. Examples with the node's label shares are evaluated in
        :func:`~fedapps.tasks.label_shares.own_label_shares`. ``vocabulary.words`` is the number of words, and
        ``vocabulary.in_glove`` the share of them that started from a GloVe vector. Of a transformer, they are the
        pieces of the node's training texts under a private embedding.
        """
        metrics: Metrics = {}
        if isinstance(pieces := data.extra["vocabulary"], PieceVocabulary):
            metrics["vocabulary.words"] = float(len(pieces.own))
        if isinstance(common := data.extra.get("common_test"), CommonTest):
            metrics |= _on_common(model, common, private=self._kept is not PrivateWords.NONE)
        with own_label_shares(model):
            for prefix, split in (("test.local_", "test"), ("validation.", "validation")):
                if split in data.splits:
                    metrics |= _accuracy(prefix, model, _by_length(data.splits[split], CHUNK))
        if self.options.recurrent:
            words = [word for word in _vocabulary(data).words if word not in RESERVED]
            metrics["vocabulary.words"] = float(len(words))
            here = vectors_are_here(self.options, self.privacy, data.key)
            if here and (vectors := node_vectors(self.options, self.privacy, data.key)):
                metrics["vocabulary.in_glove"] = vectors.share_of(words)
        return Evaluation(metrics)


def _vocabulary(data: NodeData) -> Vocabulary:
    return cast(Vocabulary, data.extra["vocabulary"])


def _tokens(encoder: str, length: int) -> Vocabulary:
    longest = longest_of(encoder)
    if longest is not None and length > longest:
        raise DataError(f"text.max-length = {length}: must be at most {longest} for the encoder {encoder}")
    return load_tokenizer(encoder)


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch, from the states above frozen layers where these are kept."""
    inputs = [batch["ids"], batch["length"], *([batch[STATES]] if STATES in batch else [])]
    logits: Tensor = model(*inputs)
    return logits


def _trimmed(examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``examples`` (``ids``, ``length``, ``label``) in this order, padded to their longest text."""
    for chosen in torch.split(order, batch_size):
        longest = int(examples["length"][chosen].max())
        batch = {name: tensor[chosen] for name, tensor in examples.items()}
        yield {**batch, **{name: batch[name][:, :longest] for name in ("ids", STATES) if name in batch}}


def _by_length(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield batches of texts of similar length."""
    yield from _trimmed(examples, examples["length"].argsort(stable=True), batch_size)


def _on_common(model: nn.Module, common: CommonTest, *, private: bool) -> Metrics:
    """The accuracy on the common test examples, computed once for a model that several nodes have.

    It is not looked up for a model with a ``private`` embedding, because each node has another one.
    """
    key = b"" if private or model.training else fingerprint(model.state_dict().values())
    if key and key in common.found:
        return common.found[key]
    batches = (translated(batch, common.translation) for batch in _by_length(common.examples, CHUNK))
    found = _accuracy("test.global_", model, batches)
    if key:
        common.found.clear()
        common.found[key] = found
    return found


def _accuracy(prefix: str, model: nn.Module, batches: Iterator[Batch]) -> Metrics:
    """The share of correctly classified examples, and the number of examples."""
    device = next(model.parameters()).device
    correct = total = 0
    for batch in batches:
        logits = _logits(model, {name: tensor.to(device) for name, tensor in batch.items()})
        correct += int((logits.argmax(dim=1).cpu() == batch["label"]).sum())
        total += len(batch["label"])
    return {f"{prefix}accuracy": correct / total, f"{prefix}accuracy.count": float(total)}
