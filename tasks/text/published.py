"""Data sets with known files, columns and classes, and their download from the Hugging Face hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedapps.tasks.text.world import write_examples

from fedapps.base.errors import DataError, need

from .corpus import Columns


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
    need("datasets", "text", "text.source = 'hub'")
    from datasets import load_dataset

    for name, split in (("train", train), ("test", hub.test)):
        try:
            examples = load_dataset(hub.name, split=split)
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
