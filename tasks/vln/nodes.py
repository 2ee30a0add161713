"""What one node holds: its house, the paths that it trains on in a stage, and those that it is tested on.

Paths that nobody described get instructions by a speaker (back-translation, Fried et al., NeurIPS 2018). The speaker
says the likeliest words, or samples descriptions, among which an agent chooses: the one with which it most likely walks
the path (a listener ranks what a speaker samples, Andreas and Klein, EMNLP 2016). Labels are kept on disk, house by
house, under a key of everything that they depend on.

A batch has a row for each instruction:

==============  =======  ======  ===============================================================
``tokens``      int32    [n, L]  numbers of the words, 0 where the text has ended
``length``      int64    [n]     of the text, at least 2
``path``        int64    [n, P]  rows of the viewpoints in :class:`~fedapps.tasks.vln.houses.Houses`, -1 after the end
``path_length`` int64    [n]     viewpoints of the path, at least 2
``facing``      int64    [n]     the view column, 0 to 11, that the agent faces at the start
``record``      int64    [n]     number of the path: instructions of the same path have the same
``weight``      float32  [n]     how much the teacher's choices count
==============  =======  ======  ===============================================================
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from fedapps.tasks.base import Batch, DataError, NodeData
from torch import Tensor
from torch.nn.functional import pad

from fedapps.base.seeding import generator, torch_seed

from .agent import Agent, agent_of, path_likelihoods
from .connectivity import Graph, nearest_heading
from .dataset import Dataset
from .features import read_features
from .houses import Houses, assemble
from .instructions import BEGIN, END, PAD, InstructedPath, Vocabulary, cached, in_folder, key_of
from .object_features import cached_object_features
from .options import Options
from .speaker import Speaker, load_speaker, load_weights

_COLUMNS = {"tokens": "length", "path": "path_length"}  # what is padded, and how far it is used
_POOL = 8  # batches among which instructions of like length are put together


def encode(
    paths: Sequence[InstructedPath], rows: Mapping[str, int], words: Vocabulary, max_length: int, weight: float = 1.0
) -> Batch:
    """Tensors of all instructions of some paths.

    Parameters
    ----------
    paths : sequence of InstructedPath
        At least one; all their viewpoints have rows.
    rows : mapping of names to int
        The row of each viewpoint ``<scan>_<viewpoint>``.
    words : Vocabulary
        Numbers of the words; others are ``<UNK>``.
    max_length : int
        Tokens of an instruction that are kept, with ``<BOS>`` and ``<EOS>``.
    weight : float
        How much the teacher's choices count.
    """
    texts = [words.encode(text, max_length) for path in paths for text in path.instructions]
    numbers = [number for number, path in enumerate(paths) for _ in path.instructions]
    stops = [[rows[f"{path.scan}_{stop}"] for stop in path.path] for path in paths]
    return {
        "tokens": _padded(texts, PAD).to(torch.int32),
        "length": torch.tensor([len(text) for text in texts]),
        "path": _padded([stops[number] for number in numbers], -1),
        "path_length": torch.tensor([len(stops[number]) for number in numbers]),
        "facing": torch.from_numpy(nearest_heading(np.array([paths[number].heading for number in numbers]))),
        "record": torch.tensor(numbers),
        "weight": torch.full((len(texts),), weight),
    }


def joined(first: Batch, second: Batch) -> Batch:
    """The examples of both; paths of the second have numbers after those of the first."""
    fill = {"tokens": PAD, "path": -1}
    both = {}
    for name, tensor in first.items():
        other = second[name] + (int(tensor.max()) + 1 if name == "record" else 0)
        if name in fill:
            width = max(tensor.shape[1], other.shape[1])
            tensor, other = (pad(each, (0, width - each.shape[1]), value=fill[name]) for each in (tensor, other))
        both[name] = torch.cat([tensor, other])
    return both


def _padded(lists: Sequence[Sequence[int]], value: int) -> Tensor:
    table = np.full((len(lists), max(map(len, lists), default=0)), value, dtype=np.int64)
    for row, numbers in enumerate(lists):
        table[row, : len(numbers)] = numbers
    return torch.from_numpy(table)


def selected(episodes: Batch, rows: Tensor) -> Batch:
    """Some rows, with columns cut to what they use. The cut changes no result: padding is masked."""
    part = {name: tensor[rows] for name, tensor in episodes.items()}
    for name, used in _COLUMNS.items():
        part[name] = part[name][:, : int(part[used].max())]
    return part


def random_batches(episodes: Batch, batch_size: int) -> Iterator[Batch]:
    """One epoch in a random order (torch's global generator), in batches of instructions of like length.

    Batches are drawn, then sorted by length within pools of a few, and come in a random order again: that saves
    padding, and an instruction may still meet any other.
    """
    order = torch.randperm(len(episodes["length"]))
    pools = torch.split(order, _POOL * batch_size)
    sorted_pools = [pool[episodes["length"][pool].argsort(stable=True)] for pool in pools]
    batches = [batch for pool in sorted_pools for batch in torch.split(pool, batch_size)]
    for index in torch.randperm(len(batches)).tolist():
        yield selected(episodes, batches[index])


def sorted_batches(episodes: Batch, batch_size: int) -> Iterator[tuple[Tensor, Batch]]:
    """Every row once, the shortest instructions first, with the numbers of the rows."""
    for rows in torch.split(episodes["length"].argsort(stable=True), batch_size):
        yield rows, selected(episodes, rows)


def one_per_path(episodes: Batch) -> Tensor:
    """The first row of each path, in the order of the paths."""
    records = episodes["record"].numpy()
    return torch.from_numpy(np.unique(records, return_index=True)[1])


_CHUNK = 64  # paths that are described at once
VERSION = 1  # raised when the same inputs come to give other labels
_FILE = "labels.json"


@dataclass(frozen=True, eq=False)
class Sampling:
    """How descriptions are sampled: ``count`` for a path at ``temperature``, of which the ``listener`` keeps one."""

    temperature: float
    count: int = 1
    listener: Agent | None = None


def label_paths(
    speaker: Speaker,
    houses: Houses,
    words: Vocabulary,
    paths: Sequence[InstructedPath],
    max_length: int,
    sampling: Sampling | None = None,
) -> list[InstructedPath]:
    """The paths with the speaker's descriptions as their instructions: the likeliest words, or by ``sampling``."""
    speaker.eval()
    episodes: Batch = encode(paths, houses.rows, words, max_length)
    labelled: list[InstructedPath] = []
    for rows in torch.split(torch.arange(len(paths)), _CHUNK):
        batch = {name: tensor[rows] for name, tensor in episodes.items()}
        temperature, count = (sampling.temperature, sampling.count) if sampling else (0.0, 1)
        sentences = [speaker.describe(houses, batch, max_length - 2, len(words), temperature) for _ in range(count)]
        described = [
            replace(paths[row], instructions=tuple(" ".join(words.decode(numbers)) for numbers in of_path))
            for row, of_path in zip(rows.tolist(), zip(*sentences, strict=True), strict=True)
        ]
        if sampling and sampling.listener:
            likelihoods = path_likelihoods(sampling.listener, houses, encode(described, houses.rows, words, max_length))
            best = likelihoods.unflatten(0, (-1, count)).argmax(dim=1).tolist()
            described = [
                replace(path, instructions=(path.instructions[index],))
                for path, index in zip(described, best, strict=True)
            ]
        labelled += described
    return labelled


def labelled_paths(
    sampled: Sequence[InstructedPath], dataset: Dataset, houses: Houses, words: Vocabulary, options: Options
) -> list[InstructedPath]:
    """Sampled paths, house after house, with the descriptions by the speaker of ``vln.speaker-file``.

    Raises
    ------
    DataError
        The file holds no speaker, or a speaker for other features or for fewer words, or the agent that chooses among
        descriptions cannot be loaded.
    """
    encoder = in_folder(options.language_model, dataset.folder) if options.language_model else None
    speaker = load_speaker(in_folder(options.speaker_file, dataset.folder), options.width, encoder)
    if speaker.sizes.vocabulary < len(words):
        raise DataError(
            f"vln.speaker-file = {options.speaker_file!r}: knows {speaker.sizes.vocabulary} words, but the vocabulary "
            f"has {len(words)}; take the vocabulary that it was trained with"
        )
    speaker.learn_words(words)
    sampling = _sampling(dataset.folder, words, options)
    labelled: list[InstructedPath] = []
    for scan, of_house in groupby(sampled, key=lambda path: path.scan):
        labelled += _labelled(list(of_house), dataset.graphs[scan], houses, speaker, words, options, sampling)
    return labelled


def _sampling(folder: Path, words: Vocabulary, options: Options) -> Sampling | None:
    if not options.speaker_temperature:
        return None
    listener = None
    if options.speaker_samples > 1:
        name, file = ("listener", options.listener_file) if options.listener_file else ("agent", options.agent_file)
        listener = agent_of(options, folder)
        listener.learn_words(words)
        load_weights(listener, in_folder(file, folder), f"vln.{name}-file")
    return Sampling(options.speaker_temperature, options.speaker_samples, listener)


def _labelled(
    paths: list[InstructedPath],
    graph: Graph,
    houses: Houses,
    speaker: Speaker,
    words: Vocabulary,
    options: Options,
    sampling: Sampling | None,
) -> list[InstructedPath]:
    def compute(unfinished: Path) -> None:
        with torch_seed(options.sample_seed, "vln.speaker", graph.scan):
            described = label_paths(speaker, houses, words, paths, options.max_length, sampling)
        (unfinished / _FILE).write_text(json.dumps([path.instructions[0] for path in described]), encoding="utf-8")

    inputs = _inputs(paths, graph, houses, speaker, words, options.max_length)
    key = key_of([*inputs, *_drawn(sampling, options)])
    texts = json.loads((cached(options.cache_folder, f"labels-{key}", compute) / _FILE).read_text(encoding="utf-8"))
    return [replace(path, instructions=(text,)) for path, text in zip(paths, texts, strict=True)]


def _inputs(
    paths: Sequence[InstructedPath], graph: Graph, houses: Houses, speaker: Speaker, words: Vocabulary, max_length: int
) -> Iterator[tuple[str, bytes]]:
    yield "labels", f"{VERSION} {max_length}".encode()
    yield "words", json.dumps(words.words).encode()
    yield "paths", json.dumps([(path.path, path.heading) for path in paths]).encode()
    yield "positions", graph.positions.tobytes()
    yield "edges", graph.navigable.tobytes()
    first = houses.rows[f"{graph.scan}_{graph.viewpoints[0]}"]
    yield "features", houses.features[first : first + len(graph.viewpoints)].numpy().tobytes()
    for name, tensor in {**speaker.state_dict(), **dict(speaker.named_buffers())}.items():
        yield f"{name} {list(tensor.shape)}", tensor.numpy().tobytes()


def _drawn(sampling: Sampling | None, options: Options) -> Iterator[tuple[str, bytes]]:
    if sampling is None:
        return
    settings = options.sample_seed, sampling.temperature, sampling.count
    yield "sampling", json.dumps(settings).encode()
    for name, tensor in sampling.listener.state_dict().items() if sampling.listener else ():
        yield f"listener {name} {list(tensor.shape)}", tensor.numpy().tobytes()


TESTED = ("val_seen", "val_unseen")


def node_data(
    dataset: Dataset, scans: Sequence[str], options: Options, key: str, words: Vocabulary | None = None
) -> NodeData:
    """The data of a node that has some houses, one unless all are pooled.

    Splits hold the tensors of :func:`encode`: ``train`` what the stage trains on, ``val_seen`` and
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
        mixed = {split: _shuffled(splits[split], key, options) for split in TESTED if split in splits}
        splits = {split: of for split, of in {**splits, **mixed}.items() if of is not None}
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


def _shuffled(episodes: Batch, key: str, options: Options) -> Batch | None:
    """The episodes with the instructions of other paths; ``None`` where most instructions are for one path."""
    rng, record = generator(options.sample_seed, "vln.shuffled", key), episodes["record"].numpy()
    mixed, rank = rng.permutation(len(record)), rng.permutation(int(record.max()) + 1)
    by_path = mixed[np.argsort(rank[record[mixed]], kind="stable")]
    most = int(np.bincount(record).max())  # rows that are so far apart are of two paths
    if 2 * most > len(record):
        return None
    order = np.empty(len(record), dtype=np.int64)
    order[by_path] = np.roll(by_path, most)
    rows = torch.from_numpy(order)
    return {**episodes, "tokens": episodes["tokens"][rows], "length": episodes["length"][rows]}
