"""Instructions by a speaker for paths that nobody described (back-translation, Fried et al., NeurIPS 2018).

They are kept on disk, house by house, under a key of everything that they depend on.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch
from fedapps.tasks.base import Batch, DataError

from .connectivity import Graph
from .dataset import Dataset
from .episodes import encode
from .files import cached, in_folder, key_of
from .houses import Houses
from .instructions import InstructedPath
from .options import Options
from .speaker import Speaker
from .vocabulary import Vocabulary
from .weights import load_speaker

_CHUNK = 64  # paths that are described at once
VERSION = 1  # raised when the same inputs come to give other labels
_FILE = "labels.json"


def label_paths(
    speaker: Speaker, houses: Houses, words: Vocabulary, paths: Sequence[InstructedPath], max_length: int
) -> list[InstructedPath]:
    """The paths with the speaker's descriptions as their instructions."""
    speaker.eval()
    episodes: Batch = encode(paths, houses.rows, words, max_length)
    labelled: list[InstructedPath] = []
    for rows in torch.split(torch.arange(len(paths)), _CHUNK):
        batch = {name: tensor[rows] for name, tensor in episodes.items()}
        said = speaker.describe(houses, batch, max_length - 2, len(words))
        for path, numbers in zip((paths[row] for row in rows.tolist()), said, strict=True):
            text = " ".join(words.decode(numbers))
            labelled.append(replace(path, instructions=(text,)))
    return labelled


def labelled_paths(
    sampled: Sequence[InstructedPath], dataset: Dataset, houses: Houses, words: Vocabulary, options: Options
) -> list[InstructedPath]:
    """Sampled paths, house after house, with the descriptions by the speaker of ``vln.speaker-file``.

    Raises
    ------
    DataError
        The file holds no speaker, or a speaker for other features or for fewer words.
    """
    speaker = load_speaker(in_folder(options.speaker_file, dataset.folder), options.width)
    if speaker.sizes.vocabulary < len(words):
        raise DataError(
            f"vln.speaker-file = {options.speaker_file!r}: knows {speaker.sizes.vocabulary} words, but the vocabulary "
            f"has {len(words)}; take the vocabulary that it was trained with"
        )
    labelled: list[InstructedPath] = []
    for scan, of_house in groupby(sampled, key=lambda path: path.scan):
        labelled += _labelled(list(of_house), dataset.graphs[scan], houses, speaker, words, options)
    return labelled


def _labelled(
    paths: list[InstructedPath],
    graph: Graph,
    houses: Houses,
    speaker: Speaker,
    words: Vocabulary,
    options: Options,
) -> list[InstructedPath]:
    def compute(unfinished: Path) -> None:
        described = label_paths(speaker, houses, words, paths, options.max_length)
        (unfinished / _FILE).write_text(json.dumps([path.instructions[0] for path in described]), encoding="utf-8")

    key = key_of(_inputs(paths, graph, houses, speaker, words, options.max_length))
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
    for name, tensor in speaker.state_dict().items():
        yield f"{name} {list(tensor.shape)}", tensor.numpy().tobytes()
