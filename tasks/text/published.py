"""Data sets with known files, columns and classes, by their names in the FedVocab paper."""

from collections.abc import Mapping
from dataclasses import dataclass

from .files import Columns


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
