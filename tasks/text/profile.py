"""Who the nodes of the task "text" are, and their world, without torch."""

from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from sim.corpus import write_corpus
from tasks.private_parameters import PrivateParameters
from tasks.profiles import DataError, NodeProfile, TaskProfiles

from .corpus import Corpus, read_corpus
from .hub import fetch
from .options import Options as TextOptions
from .partition import Part
from .parts import groups_of, node_key, partitions, splits_of
from .scope import check_starts, source_of_words

_COLUMNS = ("train_files", "test_files", "text_columns", "label_column")
SHARED = PrivateParameters()


class TextProfiles(TaskProfiles):
    """A node has some of the examples, with label shares of its own; how many does not depend on its vocabulary."""

    name: ClassVar[str] = "text"
    Options: ClassVar[type] = TextOptions

    def __init__(self, options: TextOptions | None = None, privacy: PrivateParameters = SHARED) -> None:
        """Raises :class:`DataError` for options that go together under no method (:meth:`Options.check`)."""
        super().__init__(options or TextOptions())
        self.options: TextOptions
        self.options.check()
        self.layout = self.options.layout()
        self.privacy = privacy

    def under(self, privacy: PrivateParameters) -> Self:
        """The task with the vocabularies that fit ``privacy``, which its method leaves to the nodes.

        Raises :class:`DataError` when the options do not go together with it
        (:func:`~tasks.text.scope.source_of_words`, :func:`~tasks.text.scope.check_starts`).
        """
        source_of_words(self.options, privacy)
        check_starts(self.options, privacy)
        return type(self)(self.options, privacy)

    def __eq__(self, other: object) -> bool:
        """Nodes have other data under another privacy: it counts beside the options."""
        return isinstance(other, TextProfiles) and super().__eq__(other) and self.privacy == other.privacy

    def __hash__(self) -> int:
        return hash((type(self), self.options, self.privacy))

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on: the same texts serve all others."""
        names = ("source", "dataset", "labels", "classes", "world_examples")
        return {name: getattr(self.options, name) for name in (*names, *_COLUMNS)}

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """A made-up corpus, or the data set from the hub. Raises :class:`DataError` for the source "files"."""
        if self.options.source == "simulated":
            train = self.options.world_examples * num_nodes
            write_corpus(folder, self.layout.classes, train, max(train // 4, num_nodes), seed)
        elif self.options.source == "hub":
            train_split, hub = self.options.hub()
            fetch(hub, train_split, folder)
        else:
            raise DataError(
                f"text.source = 'files': name the folder of {self.options.dataset} as data-dir, or set text.source = "
                "'hub' to fetch it, or 'simulated' for made-up texts"
            )

    def corpus(self, folder: Path, partition: int, num_partitions: int) -> Corpus:
        """The corpus of which node ``partition`` has a part. Raises :class:`DataError` for none to test on."""
        if not 0 <= partition < num_partitions:
            raise DataError(f"node {partition} of {num_partitions}: expected one from 0 to {num_partitions - 1}")
        corpus = read_corpus(folder, self.layout)
        if not corpus.test.texts:
            raise DataError(
                f"{folder}: no test texts; expected a file {' or '.join(self.layout.test)}, perhaps with .gz or .xz "
                "(text.dataset and text.test-files)"
            )
        return corpus

    def check_own_words(self) -> None:
        """Raise :class:`DataError` for a vocabulary of all nodes' texts, which a node with its own folder lacks."""
        if source_of_words(self.options, self.privacy) == "shared":
            raise DataError(
                "text.vocabulary: nodes with folders of their own cannot know the words of the others' texts; name a "
                "text.vocabulary-file that all of them have, or take a method that keeps embedding.* private"
            )

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
    """The key of a node that has all of a folder."""
    return folder.resolve().name
