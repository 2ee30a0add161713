"""What one node holds: its house, the paths that it trains on in a stage, and those that it is tested on."""

from collections.abc import Sequence

import numpy as np
import torch
from fedapps.tasks.base import Batch, NodeData

from fedapps.base.seeding import generator

from .dataset import Dataset
from .episodes import encode, joined
from .features import read_features
from .files import in_folder
from .houses import Houses, assemble
from .labelling import labelled_paths
from .object_features import cached_object_features
from .options import Options
from .vocabulary import BEGIN, END, Vocabulary

TESTED = ("val_seen", "val_unseen")


def node_data(
    dataset: Dataset, scans: Sequence[str], options: Options, key: str, words: Vocabulary | None = None
) -> NodeData:
    """The data of a node that has some houses, one unless all are pooled.

    Splits hold the tensors of :mod:`fedapps.tasks.vln.episodes`: ``train`` what the stage trains on, ``val_seen`` and
    ``val_unseen`` what people wrote, where there is any. ``extra`` holds ``houses``, ``vocabulary``, ``folder``, and
    ``paths``, by split the :class:`~fedapps.tasks.vln.instructions.InstructedPath` that the column ``record`` numbers.
    The words are those of the options unless a trained model brings its own.

    Raises
    ------
    DataError
        Features are missing, or the stage lacks the speaker that it needs.
    """
    words, houses = words or dataset.vocabulary(options), read_houses(dataset, scans, options)
    human, sampled = dataset.training_paths(scans, options)
    labelled = labelled_paths(sampled, dataset, houses, words, options) if sampled else []
    paths = {"train": human + labelled} | {split: dataset.of(split, scans) for split in TESTED}
    splits: dict[str, Batch] = {}
    for part, weight in ((human, options.imitation_weight), (labelled, options.augmented_weight)):
        if part:
            encoded = encode(part, houses.rows, words, options.max_length, weight)
            splits["train"] = joined(splits["train"], encoded) if "train" in splits else encoded
    for split in TESTED:
        if paths[split]:
            splits[split] = encode(paths[split], houses.rows, words, options.max_length)
    if options.ablation == "no-instructions":
        splits = {split: without_words(episodes) for split, episodes in splits.items()}
    if options.ablation == "shuffled-instructions":
        splits |= {split: _shuffled(splits[split], key, options) for split in TESTED if split in splits}
    groups = dataset.groups(scans[0]) if len(scans) == 1 else {}
    extra = {"houses": houses, "vocabulary": words, "paths": paths, "folder": dataset.folder}
    return NodeData(key, splits, groups, extra)


def read_houses(dataset: Dataset, scans: Sequence[str], options: Options) -> Houses:
    """Some houses as tensors, with their features.

    Raises :class:`DataError` where features are missing or do not fit.
    """
    graphs = [dataset.graphs[scan] for scan in scans]
    if options.feature_file:
        names = [f"{graph.scan}_{viewpoint}" for graph in graphs for viewpoint in graph.viewpoints]
        features = read_features(in_folder(options.feature_file, dataset.folder), names, options.width)
    else:
        features = cached_object_features(
            dataset.folder, dataset.graphs, scans, options.label_width, options.cache_folder
        )
    if options.ablation == "angles-only":
        features = np.zeros_like(features)
    return assemble(graphs, features)


def without_words(episodes: Batch) -> Batch:
    """The episodes with empty instructions."""
    tokens = torch.tensor([[BEGIN, END]], dtype=torch.int32).expand(len(episodes["length"]), 2)
    return {**episodes, "tokens": tokens.contiguous(), "length": torch.full_like(episodes["length"], 2)}


def _shuffled(episodes: Batch, key: str, options: Options) -> Batch:
    order = generator(options.sample_seed, "vln.shuffled", key).permutation(len(episodes["length"]))
    rows = torch.from_numpy(order)
    return {**episodes, "tokens": episodes["tokens"][rows], "length": episodes["length"][rows]}
