"""Instructions by a speaker for paths that nobody described (back-translation, Fried et al., NeurIPS 2018).

The speaker says the likeliest words, or samples descriptions, among which an agent chooses: the one with which it most
likely walks the path (a listener ranks what a speaker samples, Andreas and Klein, EMNLP 2016). Labels are kept on disk,
house by house, under a key of everything that they depend on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch
from fedapps.tasks.base import Batch, DataError

from fedapps.base.seeding import torch_seed

from .agent import Agent, agent_of
from .connectivity import Graph
from .dataset import Dataset
from .episodes import encode
from .files import cached, in_folder, key_of
from .houses import Houses
from .instructions import InstructedPath
from .learning import path_likelihoods
from .options import Options
from .speaker import Speaker
from .vocabulary import Vocabulary
from .weights import load_speaker, load_weights

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
    paths: Sequence[InstructedPath],
    graph: Graph,
    houses: Houses,
    speaker: Speaker,
    words: Vocabulary,
    max_length: int,
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
    chosen = options.sample_seed, sampling.temperature, sampling.count
    yield "sampling", json.dumps(chosen).encode()
    for name, tensor in sampling.listener.state_dict().items() if sampling.listener else ():
        yield f"listener {name} {list(tensor.shape)}", tensor.numpy().tobytes()
