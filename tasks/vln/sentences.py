"""Sentences that no speaker made: what a speaker has to beat, and how much people agree."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from fedapps.sim.seeding import generator
from fedapps.tasks.base import Batch
from torch import Tensor

from .bleu import CorpusCounts, bleu
from .episodes import one_per_path
from .houses import Houses
from .instructions import InstructedPath
from .speaker import moves_of
from .vocabulary import words_of
from .walks import observe

_CHUNK = 256  # paths that are looked at at once
_MOVES = 7  # of a path that count for its look


def references_of(paths: Sequence[InstructedPath]) -> list[list[list[str]]]:
    """The words of what people wrote about each path."""
    return [[words_of(text) for text in path.instructions] for path in paths]


def constant_sentence(paths: Sequence[InstructedPath], seed: int, tried: int = 300) -> list[str]:
    """Of up to ``tried`` training instructions, the one with the highest BLEU on their paths."""
    rng = generator(seed, "vln.constant")
    some = [paths[place] for place in rng.permutation(len(paths))[:tried]]
    counts = CorpusCounts(references_of(some))
    return max(
        (words_of(path.instructions[0]) for path in some),
        key=lambda sentence: bleu(counts.statistics([sentence] * len(some))),
    )


def retrieved_sentences(known: Tensor, paths: Sequence[InstructedPath], asked: Tensor) -> list[list[str]]:
    """For each path of ``asked`` an instruction of the most similar training path.

    Parameters
    ----------
    known : float32 tensor [n, D]
        The looks of the training paths (:func:`looks_of`).
    paths : sequence of InstructedPath
        The n training paths.
    asked : float32 tensor [m, D]
        The looks of the paths to describe.
    """
    scale = known.std(dim=0).clamp(min=1e-6)
    nearest = torch.cdist(asked / scale, known / scale).argmin(dim=1)
    return [words_of(paths[place].instructions[0]) for place in nearest.tolist()]


def looks_of(houses: Houses, episodes: Batch) -> Tensor:
    """The directions of the first moves of each path and the mean features along it, float32 ``[n, D]``."""
    rows = one_per_path(episodes)
    path, length = episodes["path"][rows], episodes["path_length"][rows]
    found = []
    for part in torch.split(torch.arange(len(rows)), _CHUNK):
        here, facing, candidate = moves_of(houses, path[part], length[part], episodes["facing"][rows[part]])
        seen = observe(houses, here.flatten(), facing.flatten())
        angles = seen.candidate_angles[torch.arange(here.numel()), candidate.flatten()].view(*here.shape, 4)
        moves = torch.zeros(len(part), _MOVES, 4)
        moves[:, : here.shape[1]] = angles[:, :_MOVES]
        views = houses.features[here].mean(dim=(1, 2))
        found.append(torch.cat([moves.flatten(1), views], dim=1))
    return torch.cat(found)


def human_sentences(paths: Sequence[InstructedPath]) -> tuple[list[list[str]], list[InstructedPath]]:
    """One person's words for each path, and the paths with what the others wrote.

    Paths that only one person described are left out.
    """
    several = [path for path in paths if len(path.instructions) > 1]
    others = [replace(path, instructions=path.instructions[1:]) for path in several]
    return [words_of(path.instructions[0]) for path in several], others
