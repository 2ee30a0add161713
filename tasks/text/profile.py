"""The task "text" without torch: the examples that each node has, the profiles of nodes, and the simulation of data."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import ClassVar, Self

import numpy as np
from fedapps.tasks.partitioners import Part, flower_partition
from fedapps.tasks.profiles import LowRank, ModelRoles, NodeProfile, PrivateParameters, TaskProfiles, check_partition
from fedapps.tasks.text.world import write_corpus
from fedapps.tasks.words import doubtful_words, split_words

from fedapps.base.errors import DataError
from fedapps.base.options import parse_options
from fedapps.base.seeding import generator

from .corpus import Corpus, find_files, labels_in, missing, read_corpus
from .options import MADE, Options, check_initial_vectors, check_trained_words, vocabulary_source
from .options import Options as TextOptions
from .partition import deal, dirichlet_shares, label_shares
from .published import fetch

_COLUMNS = ("train_files", "test_files", "text_columns", "label_column")
_LISTED = 10  # files and classes that a line lists
_LOOKED_AT = 2000  # training texts whose words are checked, about
SHARED = PrivateParameters()
#: The names of A, B and frozen weight of an adapted layer.
LORA = LowRank("encoder.*.lora_A.default.weight", "encoder.*.lora_B.default.weight", "encoder.*.base_layer.weight")
WITH_LORA = "text.adapter = 'lora'"
#: The floors of a comparison (:func:`fedapps.tasks.text.floors.node_floors`).
FREQUENT, TFIDF, PROBE = "most frequent class", "TF-IDF, pooled", "linear probe, pooled"


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


class TextProfiles(TaskProfiles):
    """A node has part of the examples, with different label shares; their number does not depend on its vocabulary."""

    name: ClassVar[str] = "text"
    Options: ClassVar[type] = TextOptions
    options: TextOptions
    headline: ClassVar[tuple[str, ...]] = ("test.global_accuracy", "test.local_accuracy")
    files: ClassVar[Mapping[str, str]] = {
        "`train`, `test` (`.csv`, `.tsv`, `.jsonl`)": (
            "any columns; `text.text-columns` and `text.label-column` choose them"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = (FREQUENT, TFIDF, PROBE)

    def __init__(self, options: TextOptions | None = None, privacy: PrivateParameters = SHARED) -> None:
        """Raise :class:`DataError` if the options are incompatible under every method (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()
        self.layout = self.options.layout()
        self.privacy = privacy
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
        """Compare options and private parameters, because both determine the data of nodes."""
        return isinstance(other, TextProfiles) and super().__eq__(other) and self.privacy == other.privacy

    def __hash__(self) -> int:
        return hash((type(self), self.options, self.privacy))

    @property
    def roles(self) -> ModelRoles:
        """The head is the classifier, with the layer before it that some encoders have."""
        head, chosen = ("*classifier.*",), self.options
        body = ("encoder.*",) if chosen.frozen_embedding else ("embedding.*", "encoder.*")
        if chosen.adapter == "ia3":
            return ModelRoles(head, body=("encoder.*.ia3_l.default",), features=True, factors_key=WITH_LORA)
        if not chosen.adapter:
            return ModelRoles(head, body=body, features=True, factors_key=WITH_LORA)
        factors = replace(LORA, scale=chosen.adapter_alpha / chosen.adapter_rank)
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
        if options.source != "files" and not find_files(folder, MADE):
            raise missing(folder, "training", MADE, options.hint)
        if not options.finds_labels:
            return {}, ""
        labels, count = labels_in(folder, options.train_candidates, options.columns, options.hint)
        note = f"{len(labels)} labels in {count:,} training texts, which a deployment lists: "
        if any("," in label or label != label.strip() for label in labels):
            return {"classes": len(labels)}, f"{note}--set text.classes={len(labels)} ({' | '.join(labels)})"
        return {"labels": ",".join(labels)}, f"{note}--set {quote('text.labels=' + ','.join(labels))}"

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

    def corpus(self, folder: Path, partition: int, num_partitions: int) -> Corpus:
        """Read the corpus of which node ``partition`` has a part.

        Raises
        ------
        DataError
            There is no such node, a file is missing or malformed, or there are no test texts.
        """
        check_partition(partition, num_partitions)
        corpus = read_corpus(folder, self.layout)
        if not corpus.test.texts:
            raise missing(folder, "test", self.layout.test, self.layout.hint.replace("train-files", "test-files"))
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
        train, test = (
            f"{len(part.texts):,} from {', '.join(path.name for path in files[:_LISTED]) or 'no file'}"
            f"{f' and {len(files) - _LISTED} more' if len(files) > _LISTED else ''}"
            for part, files in ((corpus.train, corpus.train_files), (corpus.test, corpus.test_files))
        )
        counts = np.bincount(corpus.train.labels, minlength=len(corpus.classes)).tolist()
        sizes = list(zip(corpus.classes, counts, strict=True))
        classes = ", ".join(f"{name} ({count:,})" for name, count in sizes[:_LISTED])
        more = f" and {len(sizes) - _LISTED} more" if len(sizes) > _LISTED else ""
        line = (
            f"texts in the column {', '.join(columns.text)} and labels in the column {columns.label}; train: {train}; "
            f"test: {test}; classes, with training texts: {classes}{more}"
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
        train, _ = partitions(corpus, self.options, num_partitions)
        return self._profile(corpus, train[partition], node_key(partition))

    def own_profile(self, folder: Path) -> NodeProfile:
        self.check_own_words()
        corpus = read_corpus(folder, self.layout)
        return self._profile(corpus, np.arange(len(corpus.train.texts)), folder_key(folder))

    def _profile(self, corpus: Corpus, train: Part, key: str) -> NodeProfile:
        return NodeProfile(key, len(splits_of(train, self.options, key)["train"]), groups_of(corpus, train))


def folder_key(folder: Path) -> str:
    """Return the key of a node that has all data of a folder."""
    return folder.resolve().name
