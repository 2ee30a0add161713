"""Where texts come from that are in no folder: data sets on the Hugging Face hub, whose files, columns and classes are
known, and simulated texts, words of a topic among common words with an occasional number.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.base.errors import DataError, need
from fedapps.base.seeding import generator

from .corpus import Columns

COMMON, TOPIC = 400, 60  # number of words common to all classes, number of words of each class
_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def write_corpus(folder: Path, classes: int, train: int, test: int, seed: int) -> None:
    """Write ``train.jsonl`` and ``test.jsonl`` into ``folder``.

    Each example is an object with ``text`` and ``label``, a whole number below ``classes``. All classes are equally
    frequent.

    Parameters
    ----------
    folder : Path
        The folder, which is created if necessary.
    classes : int
        The number of classes.
    train, test : int
        The numbers of examples.
    seed : int
        The seed, which determines the corpus.
    """
    folder.mkdir(parents=True, exist_ok=True)
    words = _invent(COMMON + classes * TOPIC, generator(seed, "corpus.words"))
    for name, count in (("train", train), ("test", test)):
        rng = generator(seed, "corpus", name)
        labels = rng.permutation(np.arange(count) % classes)
        texts = [draw_text(words, label, rng) for label in labels]
        write_examples(folder / f"{name}.jsonl", texts, labels.tolist())


def draw_text(words: Sequence[str], label: int, rng: np.random.Generator) -> str:
    """Draw a text of 8 to 24 words, about a quarter from the topic ``label`` and a twentieth numbers.

    The first :data:`COMMON` of ``words`` are common to all classes, the next :data:`TOPIC` are those of class 0, and so
    on. Within each group, frequencies follow Zipf's law.
    """
    length = int(rng.integers(8, 25))
    kinds = rng.random(length)
    common = rng.choice(COMMON, size=length, p=_zipf(COMMON))
    of_topic = COMMON + label * TOPIC + rng.choice(TOPIC, size=length, p=_zipf(TOPIC))
    numbers = rng.integers(2, 2030, size=length)
    drawn = np.where(kinds < 0.25, of_topic, common)
    return " ".join(
        str(number) if kind > 0.95 else words[word] for kind, number, word in zip(kinds, numbers, drawn, strict=True)
    )


def write_examples(path: Path, texts: Sequence[str], labels: Sequence[int | str]) -> None:
    """Write a file of JSON lines with one object ``{"text", "label"}`` per example."""
    with path.open("w", encoding="utf-8") as file:
        for text, label in zip(texts, labels, strict=True):
            file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")


def _zipf(count: int) -> np.ndarray:
    weights: np.ndarray = 1 / np.arange(1, count + 1)
    shares: np.ndarray = weights / weights.sum()
    return shares


def _invent(count: int, rng: np.random.Generator) -> list[str]:
    """Distinct words of two to four syllables, in random order."""
    words: dict[str, None] = {}
    while len(words) < count:
        syllables = int(rng.integers(2, 5))
        words["".join(rng.choice(list(_ONSETS)) + rng.choice(list(_VOWELS)) for _ in range(syllables))] = None
    return list(words)


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub: its name, its columns, and its labelled test split."""

    name: str
    columns: Columns
    test: str = "test"


@dataclass(frozen=True)
class PublishedDataset:
    """A published data set.

    Attributes
    ----------
    train, test : tuple of str
        Candidate file names, of which the first that exists is read, in any compression.
    columns : Columns
        The columns to read.
    labels : tuple of str
        The classes as written in the files.
    lengths : tuple of (int, int)
        The paper's maximum text lengths for a BiLSTM and a transformer.
    hub : HubDataset
        The data set on the hub.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    columns: Columns
    labels: tuple[str, ...]
    lengths: tuple[int, int]
    hub: HubDataset


PUBLISHED: Mapping[str, PublishedDataset] = {
    # X. Zhang, J. Zhao, Y. LeCun, Character-level Convolutional Networks for Text Classification, NeurIPS 2015
    "agnews": PublishedDataset(
        train=("train.csv", "train_partial.csv"),
        test=("test.csv",),
        columns=Columns(("2", "3"), "1"),
        labels=("1", "2", "3", "4"),
        lengths=(128, 128),
        hub=HubDataset("fancyzhx/ag_news", Columns(("text",), "label")),
    ),
    # R. Socher et al., Recursive Deep Models for Semantic Compositionality, EMNLP 2013; GLUE's test.tsv has no labels
    "sst2": PublishedDataset(
        train=("train.tsv",),
        test=("test-labeled.tsv", "dev.tsv"),
        columns=Columns(("sentence",), "label"),
        labels=("0", "1"),
        lengths=(32, 32),
        hub=HubDataset("stanfordnlp/sst2", Columns(("sentence",), "label"), test="validation"),
    ),
    # K. Lang, NewsWeeder: Learning to Filter Netnews, ICML 1995
    "20news": PublishedDataset(
        train=("train.jsonl",),
        test=("test.jsonl",),
        columns=Columns(("text",), "label"),
        labels=tuple(str(label) for label in range(20)),
        lengths=(512, 256),
        hub=HubDataset("SetFit/20_newsgroups", Columns(("text",), "label")),
    ),
}


def fetch(hub: HubDataset, train: str, folder: Path) -> None:
    """Write the splits ``train`` and ``hub.test`` of a data set to train.jsonl and test.jsonl in ``folder``.

    Raises
    ------
    DataError
        The data set cannot be downloaded, or lacks a split or a column.
    """
    datasets = need("datasets", "text", "text.source = 'hub'")
    for name, split in (("train", train), ("test", hub.test)):
        try:
            examples = datasets.load_dataset(hub.name, split=split)
        except Exception as error:  # errors of the library, the client and the network have no common type
            raise DataError(
                f"the data set {hub.name!r}, split {split!r}, cannot be downloaded from the Hugging Face hub "
                f"({error}). If the hub is unreachable, download the files elsewhere and set text.source = 'files' and "
                "data-dir to their folder"
            ) from error
        if missing := [column for column in hub.columns.all if column not in examples.column_names]:
            raise DataError(
                f"the data set {hub.name!r} has no column {', '.join(missing)}; found "
                f"{', '.join(examples.column_names)} (text.text-columns and text.label-column name the columns to read)"
            )
        parts = zip(*(examples[column] for column in hub.columns.text), strict=True)
        write_examples(folder / f"{name}.jsonl", [" ".join(part) for part in parts], examples[hub.columns.label])
