"""Scores of an agent and of a speaker on a node's paths, and of what they are held against."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sim.seeding import generator
from tasks.base import Batch, Metrics

from .agent import Agent
from .baselines import WALKERS, walk
from .bleu import bleu, bleu_statistics
from .episodes import chosen, one_per_path, sorted_batches
from .houses import Houses
from .instructions import InstructedPath
from .metrics import METRICS, navigation_metrics
from .rollout import greedy, roll_out
from .speaker import Speaker, moves_of
from .vocabulary import Vocabulary, words_of
from .walks import observe

CHUNK = 256  # episodes that are walked at once


@torch.no_grad()
def walk_all(agent: Agent, houses: Houses, episodes: Batch, max_actions: int) -> tuple[Mapping[str, Tensor], Tensor]:
    """The metrics of each episode under the agent's best guesses, float64 ``[n]`` each, and its trails ``[n, T]``, -1
    after the end."""
    count = len(episodes["length"])
    metrics = {name: torch.zeros(count, dtype=torch.float64) for name in METRICS}
    trails = torch.full((count, max_actions + 1), -1)
    for rows, batch in sorted_batches(episodes, CHUNK):
        here = {name: tensor.to(houses.features.device) for name, tensor in batch.items()}
        walked = roll_out(agent, houses, here, greedy, max_actions)
        trails[rows, : walked.trail.shape[1]] = walked.trail.cpu()
        scores = navigation_metrics(houses, walked.trail, walked.trail_length, here["path"], here["path_length"])
        for name, values in scores.items():
            metrics[name][rows] = values.cpu()
    return metrics, trails


def means(prefix: str, metrics: Mapping[str, Tensor]) -> Metrics:
    """The mean of each metric, with how many episodes it is of: those of several houses then weigh by episodes."""
    found: Metrics = {}
    for name, values in metrics.items():
        found |= {f"{prefix}.{name}": float(values.mean()), f"{prefix}.{name}.count": float(len(values))}
    return found


def walker_metrics(houses: Houses, episodes: Batch, prefix: str, seed: int) -> Metrics:
    """The metrics of :data:`~tasks.vln.baselines.WALKERS`, as ``<prefix>.<walker>.<metric>``."""
    found: Metrics = {}
    for name, walker in WALKERS.items():
        found |= means(f"{prefix}.{name}", walk(houses, episodes, walker, generator(seed, "vln.walker", name)))
    return found


def describe_all(
    speaker: Speaker, houses: Houses, episodes: Batch, words: Vocabulary, max_length: int
) -> list[list[str]]:
    """The words that the speaker has for each path of a split, in the order of the paths."""
    rows = one_per_path(episodes)
    said: list[list[str]] = []
    for some in torch.split(rows, CHUNK):
        batch = {name: tensor.to(houses.features.device) for name, tensor in chosen(episodes, some).items()}
        said += [words.decode(numbers) for numbers in speaker.describe(houses, batch, max_length - 2, len(words))]
    return said


def sentence_metrics(prefix: str, said: Sequence[Sequence[str]], paths: Sequence[InstructedPath]) -> Metrics:
    """BLEU-4 of sentences against what people wrote, and how many of the sentences are different.

    ``<prefix>.bleu`` in [0, 100] is of these paths; ``<prefix>.ngrams`` are its statistics, whose mean over houses
    gives BLEU of all houses' paths (:func:`~tasks.vln.bleu.bleu`). ``<prefix>.distinct`` in [0, 1].
    """
    statistics = bleu_statistics(said, [[words_of(text) for text in path.instructions] for path in paths])
    count = float(len(paths))
    return {
        f"{prefix}.bleu": bleu(statistics),
        f"{prefix}.bleu.count": count,
        f"{prefix}.ngrams": statistics.tolist(),
        f"{prefix}.distinct": len({tuple(sentence) for sentence in said}) / count,
        f"{prefix}.distinct.count": count,
    }


def constant_sentence(paths: Sequence[InstructedPath], seed: int, tried: int = 100) -> list[str]:
    """Of some training instructions the one that fits the training paths best by BLEU: what needs no speaker."""
    rng = generator(seed, "vln.constant")
    some = [paths[place] for place in rng.permutation(len(paths))[:tried]]
    references = [[words_of(text) for text in path.instructions] for path in some]
    return max(
        (words_of(path.instructions[0]) for path in some),
        key=lambda sentence: bleu(bleu_statistics([sentence] * len(some), references)),
    )


def retrieved_sentences(
    houses: Houses, train: Batch, train_paths: Sequence[InstructedPath], test: Batch
) -> list[list[str]]:
    """For each path of ``test`` an instruction of the training path that looks most like it.

    A path looks like the mean features along it and the headings and elevations of its moves.
    """
    known, asked = _looks(houses, train), _looks(houses, test)
    scale = known.std(dim=0).clamp(min=1e-6)
    nearest = torch.cdist(asked / scale, known / scale).argmin(dim=1)
    return [words_of(train_paths[place].instructions[0]) for place in nearest.tolist()]


def _looks(houses: Houses, episodes: Batch) -> Tensor:
    rows = one_per_path(episodes)
    path, length = episodes["path"][rows], episodes["path_length"][rows]
    found = []
    for part in torch.split(torch.arange(len(rows)), CHUNK):
        here, facing, candidate = moves_of(houses, path[part], length[part], episodes["facing"][rows[part]])
        seen = observe(houses, here.flatten(), facing.flatten())
        angles = seen.candidate_angles[torch.arange(here.numel()), candidate.flatten()].view(*here.shape, 4)
        moves = torch.zeros(len(part), 7, 4)
        moves[:, : here.shape[1]] = angles[:, :7]
        views = houses.features[here].mean(dim=(1, 2))
        found.append(torch.cat([moves.flatten(1), views], dim=1))
    return torch.cat(found)


def human_sentences(paths: Sequence[InstructedPath]) -> tuple[list[list[str]], list[InstructedPath]]:
    """One person's words for each path, and the paths with what the others wrote: how much people agree."""
    several = [path for path in paths if len(path.instructions) > 1]
    others = [replace(path, instructions=path.instructions[1:]) for path in several]
    return [words_of(path.instructions[0]) for path in several], others
