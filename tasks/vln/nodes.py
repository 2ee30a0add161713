"""What one node holds: its house, the paths that it trains on in a stage, and those that it is tested on."""

from collections.abc import Sequence

import torch

from sim.seeding import generator
from tasks.base import Batch, DataError, NodeData

from .dataset import Dataset
from .episodes import encode, joined
from .files import in_folder
from .houses import Houses
from .instructions import InstructedPath
from .options import Options
from .sampling import label_paths, sample_paths
from .vocabulary import BEGIN, END, Vocabulary
from .weights import load_speaker

TESTED = ("val_seen", "val_unseen")


def chosen_houses(dataset: Dataset, options: Options) -> tuple[str, ...]:
    """The houses that are nodes, in the order of their numbers: seen ones first, each kind by name."""
    kinds = {"seen": dataset.seen, "unseen": dataset.unseen, "all": (*dataset.seen, *dataset.unseen)}
    return kinds[options.houses]


def node_data(dataset: Dataset, scans: Sequence[str], options: Options, key: str) -> NodeData:
    """The data of a node that has some houses, one unless all are pooled.

    Splits hold the tensors of :mod:`tasks.vln.episodes`: ``train`` what the stage trains on, ``val_seen`` and
    ``val_unseen`` what people wrote, where there is any. ``extra`` holds ``houses``, ``vocabulary``, ``folder``,
    and ``paths``, by split the :class:`~tasks.vln.instructions.InstructedPath` that the column ``record`` numbers.

    Raises
    ------
    DataError
        A path leaves its house's graph, features are missing, or the stage lacks the speaker that it needs.
    """
    words, houses = dataset.vocabulary(options), dataset.houses(scans, options)
    human = dataset.of("train", [scan for scan in scans if scan in dataset.seen])
    labelled = _labelled(dataset, scans, options, houses, words)
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
        splits = {split: _without_words(episodes) for split, episodes in splits.items()}
    if options.ablation == "shuffled-instructions":
        splits |= {split: _shuffled(splits[split], key, options) for split in TESTED if split in splits}
    groups = {}
    if len(scans) == 1:
        groups = {"house": scans[0], "seen": str(scans[0] in dataset.seen).lower()}
    extra = {"houses": houses, "vocabulary": words, "paths": paths, "folder": dataset.folder}
    return NodeData(key, splits, groups, extra)


def _labelled(
    dataset: Dataset, scans: Sequence[str], options: Options, houses: Houses, words: Vocabulary
) -> list[InstructedPath]:
    """Sampled paths with a speaker's instructions, of the houses that train on them in the stage."""
    where = {"augmented": dataset.seen, "pre-exploration": set(scans) - set(dataset.seen)}.get(options.stage, ())
    wanted = [scan for scan in scans if scan in where]
    if not wanted:
        return []
    if not options.speaker_file:
        raise DataError(
            f"vln.stage = {options.stage!r}: house {wanted[0]} trains on paths that a speaker labels; name the file "
            "that vln.stage = 'speaker' left as vln.speaker-file"
        )
    paths = [
        path
        for scan in wanted
        for path in sample_paths(
            dataset.graphs[scan], options.sampled_paths, generator(options.sample_seed, "vln.paths", scan)
        )
    ]
    speaker = load_speaker(in_folder(options.speaker_file, dataset.folder), options.width)
    if speaker.sizes.vocabulary < len(words):
        raise DataError(
            f"vln.speaker-file = {options.speaker_file!r}: knows {speaker.sizes.vocabulary} words, but the vocabulary "
            f"has {len(words)}; take the vocabulary that it was trained with"
        )
    return label_paths(speaker, houses, words, paths, options.max_length)


def _without_words(episodes: Batch) -> Batch:
    tokens = torch.tensor([[BEGIN, END]], dtype=torch.int32).expand(len(episodes["length"]), 2)
    return {**episodes, "tokens": tokens.contiguous(), "length": torch.full_like(episodes["length"], 2)}


def _shuffled(episodes: Batch, key: str, options: Options) -> Batch:
    order = generator(options.sample_seed, "vln.shuffled", key).permutation(len(episodes["length"]))
    rows = torch.from_numpy(order)
    return {**episodes, "tokens": episodes["tokens"][rows], "length": episodes["length"][rows]}
