"""The task "text": classify texts on nodes whose words and embeddings may stay private."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, MetricRule, Metrics, NodeData, Task
from fedapps.tasks.language import doubtful_words, split_words
from fedapps.tasks.model_folder import FILES, field_of, texts_of
from fedapps.tasks.partitioners import Part, by_stage, own_label_shares, stages_in
from fedapps.tasks.profiles import LowRank, ModelRoles, NodeProfile, PrivateParameters, check_partition
from fedapps.tasks.text.sources import write_corpus
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn.functional import cross_entropy

from fedapps.base.errors import DataError, listed
from fedapps.base.options import label_keys, parse_options
from fedapps.base.tables import find_tables

from . import nodes, transformer
from .corpus import Corpus, Layout, labels_in, missing, read_corpus
from .evaluation import CHUNK, FREQUENT, PROBE, TFIDF, accuracy, by_length, logits_of, node_floors, on_common, trimmed
from .networks import PUBLIC, TextClassifier, keep_own_rows, recurrent_model, shaped_lstm
from .options import MADE, PrivateWords, check_initial_vectors, check_trained_words, private_words, vocabulary_source
from .options import Options as TextOptions
from .sources import fetch
from .vocabulary import (
    DIGITS,
    RESERVED,
    SPECIAL,
    TOKENIZER,
    PieceVocabulary,
    Vocabulary,
    WordVocabulary,
    read_tokenizer,
    read_vocabulary,
)
from .word_vectors import assigned_start, node_vectors, vectors_are_here

_COLUMNS = ("train_files", "test_files", "text_columns", "label_column")
_LISTED = 10  # files and classes that a line lists
_LOOKED_AT = 2000  # training texts whose words are checked, about
SHARED = PrivateParameters()
#: The names of A, B and frozen weight of an adapted layer.
LORA = LowRank("encoder.*.lora_A.default.weight", "encoder.*.lora_B.default.weight", "encoder.*.base_layer.weight")
WITH_LORA = "text.adapter = 'lora'"


class TextTask(Task):
    """Classify texts with an embedding that may stay on the node (FedVocab [1]_).

    A node has some of the examples, with its own label shares; their number does not depend on its vocabulary. Under a
    method that keeps ``embedding.*`` private (:meth:`under`) it also has its own vocabulary, so embeddings have
    different shapes on different nodes, while ``encoder.*`` and ``classifier.*`` (and a transformer's
    ``pre_classifier.*``) have the same shapes everywhere. Without :meth:`under` nothing is private.

    Splits hold ``ids`` int32 ``[n, L]``, ``length`` int64 ``[n]`` and ``label`` int64 ``[n]``; "test" are test examples
    with the node's label shares. ``NodeData.extra`` holds the ``vocabulary`` and, for one of several nodes,
    ``common_test``, the test examples common to all nodes (:class:`~fedapps.tasks.text.nodes.CommonTest`).

    .. [1] Zhang et al., FedVocab: Privacy-Preserving Federated Text Classification with Private Vocabularies, 2022.
    """

    name: ClassVar[str] = "text"
    Options: ClassVar[type] = TextOptions
    options: TextOptions
    headline: ClassVar[tuple[str, ...]] = ("test.global_accuracy", "test.local_accuracy")
    common_metrics: ClassVar[tuple[str, ...]] = ("test.global_*",)
    files: ClassVar[Mapping[str, str]] = {
        "`train`, `test` (`.csv`, `.tsv`, `.jsonl`, `.parquet`)": (
            "any columns; `text.text-columns` and `text.label-column` choose them"
        ),
    }
    in_order: ClassVar[bool] = True
    output_keys: ClassVar[tuple[str, ...]] = ("labels", "classes")
    floors: ClassVar[tuple[str, ...]] = (FREQUENT, TFIDF, PROBE)
    vectorises: ClassVar[bool] = False  # vmap does not support LSTMs
    metric_means: ClassVar[Mapping[str, MetricRule]] = {
        "test.global_accuracy": "geometric",
        "test.local_accuracy": "uniform",
    }
    trained_model: ClassVar[str] = "fedapps.tasks.text.trained:TextTrained"
    audit_subject: ClassVar[str] = "fedapps.tasks.text.privacy:TextSubject"

    def __init__(
        self, options: TextOptions | None = None, privacy: PrivateParameters = SHARED, known: tuple[str, ...] = ()
    ) -> None:
        """Raise :class:`DataError` if the options are incompatible under every method (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()
        self.layout = self.options.layout()
        self.stage_of = self.options.stage_of("text", self.layout.classes)
        self.privacy = privacy
        self.known = known
        self._under: dict[PrivateParameters, Self] = {}  # every message asks for the task under its method

    def under(self, privacy: PrivateParameters) -> Self:
        """Return the task with vocabularies that suit the private parameters of a method.

        Raises
        ------
        DataError
            The options are incompatible with ``privacy`` (:func:`~fedapps.tasks.text.options.vocabulary_source`,
            :func:`~fedapps.tasks.text.options.check_initial_vectors`,
            :func:`~fedapps.tasks.text.options.check_trained_words`).
        """
        if privacy not in self._under:
            vocabulary_source(self.options, privacy)
            check_initial_vectors(self.options, privacy)
            check_trained_words(self.options, privacy)
            self._under[privacy] = type(self)(self.options, privacy)
        return self._under[privacy]

    def __eq__(self, other: object) -> bool:
        """Compare options, private parameters and known words, because they determine the data of nodes."""
        if not (isinstance(other, TextTask) and super().__eq__(other)):
            return False
        return self.privacy == other.privacy and self.known == other.known

    def __hash__(self) -> int:
        return hash((type(self), self.options, self.privacy, self.known))

    def words(self, data: NodeData) -> tuple[str, ...]:
        """Return the words, or the numbers of the pieces, whose vectors stay on the node; of digits only these."""
        vocabulary = _vocabulary(data)
        if isinstance(vocabulary, PieceVocabulary):
            return tuple(map(str, vocabulary.own))
        if self._kept is PrivateWords.NONE or not isinstance(vocabulary, WordVocabulary):
            return ()
        only_digits = self._kept is PrivateWords.DIGITS
        return vocabulary.words[vocabulary.words.index(DIGITS) + 1 :] if only_digits else vocabulary.words

    def knowing(self, words: tuple[str, ...]) -> Self:
        return type(self)(self.options, self.privacy, words)

    @property
    def roles(self) -> ModelRoles:
        """The head is the classifier, with the layer before it that some encoders have."""
        head, options = ("*classifier.*",), self.options
        body = ("encoder.*",) if options.frozen_embedding else ("embedding.*", "encoder.*")
        if options.adapter == "ia3":
            return ModelRoles(head, body=("encoder.*.ia3_l.default",), features=True, factors_key=WITH_LORA)
        if not options.adapter:
            return ModelRoles(head, body=body, features=True, factors_key=WITH_LORA)
        factors = replace(LORA, scale=options.adapter_alpha / options.adapter_rank)
        return ModelRoles(head, body=(LORA.a, LORA.b), features=True, factors=factors)

    @classmethod
    def found_keys(cls, values: Mapping[str, object], folder: Path) -> tuple[dict[str, str | int], str]:
        """Return ``labels`` of a data set that is not known, or ``classes`` if they cannot be listed."""
        arguments, errors = parse_options(TextOptions, dict(values))
        if errors:
            return {}, ""
        options = TextOptions(**arguments)
        if (options.source != "files" or options.finds_labels) and not folder.is_dir():
            raise DataError(f"data-dir = {str(folder)!r}: no such folder; give the folder with the data files")
        if options.source != "files" and not find_tables(folder, MADE):
            raise missing(folder, "training", MADE, options.hint)
        if not options.finds_labels:
            return {}, ""
        labels, count = labels_in(folder, options.train_candidates, options.columns, options.hint)
        keys = label_keys(labels)
        settings = " ".join(f"--set {quote(f'text.{key}={value}')}" for key, value in keys.items())
        names = f" ({' | '.join(labels)})" if "classes" in keys else ""
        return keys, f"{len(labels)} labels in {count:,} training texts, which a deployment lists: {settings}{names}"

    @property
    def num_stages(self) -> int:
        return self.options.stages

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        names = ("source", "dataset", "labels", "classes", "world_examples")
        return {name: getattr(self.options, name) for name in (*names, *_COLUMNS)}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Write a simulated or downloaded corpus. Raise :class:`DataError` for the source "files"."""
        if self.options.source == "simulated":
            train = self.options.world_examples * num_nodes
            write_corpus(folder, self.layout.classes, train, max(train // 4, num_nodes), seed)
        elif self.options.source == "hub":
            train_split, hub = self.options.hub()
            fetch(hub, train_split, folder)
        else:
            raise DataError(
                f"text.source = 'files': set data-dir to the folder of {self.options.dataset}, or set text.source = "
                "'hub' to download it, or 'simulated' for simulated texts"
            )

    def corpus(self, folder: Path, partition: int, num_partitions: int, layout: Layout | None = None) -> Corpus:
        """Read the corpus of which node ``partition`` has a part; ``layout`` stands for that of the options.

        Raises
        ------
        DataError
            There is no such node, a file is missing or malformed, or there are no test texts.
        """
        check_partition(partition, num_partitions)
        corpus = read_corpus(folder, layout or self.layout)
        if not corpus.test.texts:
            hint = self.layout.hint.replace("train-files", "test-files")
            raise missing(folder, "test", self.layout.test, f"{hint}; text.test-share above 0 holds some out")
        return corpus

    def check_own_words(self) -> None:
        """Raise :class:`DataError` for a vocabulary of all nodes' texts, which a deployed node does not have."""
        if vocabulary_source(self.options, self.privacy) == "shared":
            raise DataError(
                "text.vocabulary: deployed nodes do not know the words of other nodes' texts; name a "
                "text.vocabulary-file that all nodes have, or use a method that keeps embedding.* private"
            )

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        corpus, columns = read_corpus(folder, self.layout), self.layout.columns
        drawn = f"{self.options.test_share:.0%} of these, drawn" if corpus.test.texts else "no file"
        train, test = (
            f"{len(part.texts):,} from {listed((path.name for path in files), _LISTED) or drawn}"
            for part, files in ((corpus.train, corpus.train_files), (corpus.test, corpus.test_files))
        )
        counts = np.bincount(corpus.train.labels, minlength=len(corpus.classes)).tolist()
        classes = [f"{name} ({count:,})" for name, count in zip(corpus.classes, counts, strict=True)]
        line = (
            f"texts in the column {', '.join(columns.text)} and labels in the column {columns.label}; train: {train}; "
            f"test: {test}; classes, with training texts: {listed(classes, _LISTED)}"
        )
        doubt = self._doubt(corpus) if self.options.recurrent else ""
        return f"{line}; {doubt}" if doubt else line

    def _doubt(self, corpus: Corpus) -> str:
        """Why the words of training texts are hardly words, and what to do; empty if they are."""
        texts = corpus.train.texts
        doubt = doubtful_words(split_words(text) for text in texts[:: max(1, len(texts) // _LOOKED_AT)])
        return f"{doubt}; name a pretrained encoder of this language in text.model" if doubt else ""

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        corpus = self.corpus(folder, partition, num_partitions)
        train, _ = nodes.partitions(corpus, self.options, num_partitions)
        return self._profile(corpus, train[partition], nodes.node_key(partition), nodes.splits_of)

    def own_profile(self, folder: Path) -> NodeProfile:
        self.check_own_words()
        corpus = read_corpus(folder, self.layout)
        return self._profile(corpus, np.arange(len(corpus.train.texts)), folder_key(folder), nodes.own_splits)

    def _profile(self, corpus: Corpus, train: Part, key: str, split: nodes.Split) -> NodeProfile:
        labels = torch.from_numpy(corpus.train.labels[split(train, self.options, key)["train"]])
        stages = by_stage(f"the training texts of {key}", {"train": {"label": labels}}, self.stage_of)
        return NodeProfile(key, len(stages[0]["train"]["label"]), nodes.groups_of(corpus, train))

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
        build = recurrent_model if self.options.recurrent else transformer.transformer_model
        return build(self.options, self.privacy, self.layout.classes, vocabulary, key)

    @property
    def _kept(self) -> PrivateWords:
        """The words whose vectors never leave the node and are trained there."""
        return PrivateWords.NONE if self.options.frozen_embedding else private_words(self.options, self.privacy)

    def _public_vocabulary(self, key: str | None) -> Vocabulary | None:
        """The vocabulary that depends on no texts, or ``None``; ``key`` is the node's."""
        options, source = self.options, vocabulary_source(self.options, self.privacy)
        if source == "tokenizer":
            encoder = assigned_start(options, self.privacy, key) if key is not None else ""
            return _tokens(encoder or options.model, options.length)
        if source == "file":
            option = "text.vocabulary-file" if options.vocabulary_file else "text.glove"
            path = Path(options.words_file).expanduser()
            return read_vocabulary(path, options.vocabulary_size, option, options.embedding_width)
        return None

    @property
    def fixed(self) -> tuple[str, ...]:
        """The frozen layers, what is frozen below adapters, and the rows of a private embedding that a node's texts do
        not use (:class:`.OwnRows`).
        """
        if self.options.recurrent:
            return ()
        below = transformer.frozen_below(self.options, self.privacy) if self.options.adapter else ()
        return (PUBLIC, *transformer.frozen_of(self.options), *below)

    @property
    def fixed_digest(self) -> str:
        """The digest of the pretrained encoder, if a shared part of it is frozen."""
        options = self.options
        frozen = options.adapter or options.frozen_layers or options.frozen_embedding
        return transformer.digest_of(options.model) if frozen and options.weights == "pretrained" else ""

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
            facts["encoder"] = transformer.facts_of(self.options.model)
            if data is not None and (dealt := assigned_start(self.options, self.privacy, data.key)):
                facts |= {"embedding": transformer.facts_of(dealt), "tokenizer": dealt}
        return facts

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> TextClassifier:
        if not ("words" in facts or (files is not None and (files / TOKENIZER).is_file())):
            raise DataError(f"facts have no words, and the folder has no {FILES}/{TOKENIZER}")
        words, classes = self.vocabulary_of(facts, files), len(texts_of(facts, "classes", least=2))
        if self.options.recurrent:
            return shaped_lstm(self.options, self.privacy, classes, words.words)
        embedding = field_of(facts, "embedding", dict) if "embedding" in facts else None
        encoder = field_of(facts, "encoder", dict)
        model = transformer.shaped(encoder, embedding, words.words, self.options, self._kept, classes)
        if "pieces" in facts:
            pieces = field_of(facts, "pieces", list)
            if not all(type(piece) is int and 0 <= piece < len(words.words) for piece in pieces):
                raise DataError(f"pieces: must be numbers from 0 to {len(words.words) - 1}")
            if len(set(pieces)) < len(pieces):
                raise DataError("pieces: a number occurs twice")
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
        words, layout = nodes.Words(vocabulary, PrivateWords.NONE), replace(self.layout, labels=classes)
        if partition is None:
            corpus, options = read_corpus(folder, layout, only_test=True), replace(self.options, stages=1)
            return nodes.whole_data(corpus, options, words, folder_key(folder), nodes.own_splits)
        corpus = self.corpus(folder, partition, num_partitions, layout)
        return nodes.node_data(corpus, self.options, words, partition, num_partitions)

    # -- data ----------------------------------------------------------------------------------------------

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if the encoder is not available or cannot be used
        (:func:`~fedapps.tasks.text.nodes.check_encoder`)."""
        if not self.options.recurrent:
            _tokens(self.options.model, self.options.length)
            nodes.check_encoder(self.options)

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        corpus = self.corpus(folder, partition, num_partitions)
        return nodes.node_data(
            corpus, self.options, self._words(corpus, nodes.node_key(partition)), partition, num_partitions
        )

    def load_all(self, folder: Path) -> NodeData:
        """Read the whole folder, whose name is the key. A node's own folder may lack the test file."""
        return self._whole(folder, nodes.splits_of)

    def _whole(self, folder: Path, split: nodes.Split) -> NodeData:
        corpus, key = read_corpus(folder, self.layout), folder_key(folder)
        return nodes.whole_data(corpus, self.options, self._words(corpus, key), key, split)

    def load_own(self, folder: Path) -> NodeData:
        """Read a node's own folder. Raise :class:`DataError` for a vocabulary of all nodes' texts, which is unknown."""
        self.check_own_words()
        return self._whole(folder, nodes.own_splits)

    def _words(self, corpus: Corpus, key: str) -> nodes.Words:
        options = self.options
        if vocabulary_source(options, self.privacy) == "shared":
            shared = nodes.shared_vocabulary(corpus, options.vocabulary_size, options.min_count)
            return nodes.Words(shared, self._kept, self.known)
        return nodes.Words(self._public_vocabulary(key), self._kept, self.known)

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
        """The floors of :func:`~fedapps.tasks.text.evaluation.node_floors`."""
        for node in range(num_nodes) if self.num_stages > 1 else ():
            self.node_profile(folder, node, num_nodes)  # refuses a node that lacks a stage
        return node_floors(self.corpus(folder, 0, num_nodes), self.options, num_nodes)

    # -- learning ------------------------------------------------------------------------------------------

    @property
    def num_classes(self) -> int:
        return self.layout.classes

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean cross-entropy."""
        return cross_entropy(logits_of(model, batch), batch["label"])

    def drawn_labels(self, model: nn.Module, batch: Batch, temperature: float) -> Batch:
        """Return labels that have the probabilities of the model."""
        return {**batch, "label": Categorical(logits=logits_of(model, batch)).sample()}

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield the same batches as other tasks, each padded only to its own longest text."""
        yield from trimmed(data.splits[split], torch.randperm(data.count(split)), batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Yield texts of similar length together, which minimises padding."""
        yield from by_length(data.splits[split], batch_size)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """Return the accuracy and the number of examples of every split that exists.

        ``test.local_*`` are test examples with the node's label shares, ``test.global_*`` those common to all nodes,
        and ``validation.*`` the node's own. Examples with the node's label shares are evaluated in
        :func:`~fedapps.tasks.partitioners.own_label_shares`. With ``text.stages``, all are of the classes of the stage;
        ``stage_accuracy`` is the accuracy among these (:func:`~fedapps.tasks.partitioners.right_in_stage`).
        ``vocabulary.words`` is the number of words, and
        ``vocabulary.in_glove`` the share of them that started from a GloVe vector. Of a transformer, they are the
        pieces of the node's training texts under a private embedding.
        """
        metrics: Metrics = {}
        if isinstance(pieces := data.extra["vocabulary"], PieceVocabulary):
            metrics["vocabulary.words"] = float(len(pieces.own))
        stage_of = self.stage_of if self.num_stages > 1 else None
        if isinstance(common := data.extra.get("common_test"), nodes.CommonTest):
            if common.stages and len(stages := stages_in(data, self.stage_of)) == 1:
                common = common.stages[int(stages[0])]
            metrics |= on_common(model, common, stage_of, private=self._kept is not PrivateWords.NONE)
        with own_label_shares(model):
            for prefix, split in (("test.local_", "test"), ("validation.", "validation")):
                if split in data.splits:
                    metrics |= accuracy(prefix, model, by_length(data.splits[split], CHUNK), stage_of)
        if self.options.recurrent:
            words = [word for word in _vocabulary(data).words if word not in RESERVED]
            metrics["vocabulary.words"] = float(len(words))
            has_vectors = vectors_are_here(self.options, self.privacy, data.key)
            if has_vectors and (vectors := node_vectors(self.options, self.privacy, data.key)):
                metrics["vocabulary.in_glove"] = vectors.share_of(words)
        return Evaluation(metrics)


def _vocabulary(data: NodeData) -> Vocabulary:
    return cast(Vocabulary, data.extra["vocabulary"])


def _tokens(encoder: str, length: int) -> Vocabulary:
    longest = transformer.longest_of(encoder)
    if longest is not None and length > longest:
        raise DataError(f"text.max-length = {length}: must be at most {longest} for the encoder {encoder}")
    tokens = transformer.load_tokenizer(encoder)
    if length <= (special := tokens.tokenizer.num_special_tokens_to_add(False)):
        raise DataError(
            f"text.max-length = {length}: must be above {special}, the number of tokens that the tokenizer of "
            f"{encoder} adds to every text"
        )
    return tokens


def folder_key(folder: Path) -> str:
    """Return the key of a node that has all data of a folder."""
    return folder.resolve().name
