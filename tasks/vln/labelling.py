"""Instructions by a speaker for paths that nobody described (back-translation, Fried et al., NeurIPS 2018)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from fedapps.tasks.base import Batch

from .episodes import encode
from .houses import Houses
from .instructions import InstructedPath
from .speaker import Speaker
from .vocabulary import Vocabulary

_CHUNK = 64  # paths that are described at once


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
