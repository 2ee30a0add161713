"""Scores of an agent and of a speaker on a node's paths."""

from collections.abc import Mapping, Sequence

import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from .agent import Agent
from .bleu import bleu, bleu_statistics
from .episodes import chosen, one_per_path, sorted_batches
from .houses import Houses
from .instructions import InstructedPath
from .metrics import METRICS, navigation_metrics
from .rollout import greedy, roll_out
from .sentences import references_of
from .speaker import Speaker
from .vocabulary import Vocabulary

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
    """BLEU-4 of a node's sentences against what people wrote, and the share of them that are distinct.

    ``<prefix>.bleu`` in [0, 100] is of these paths; the sums over houses of its ``<prefix>.bleu.statistics`` give BLEU
    of all houses' paths (:data:`~fedapps.tasks.vln.bleu.CORPUS_BLEU`). ``<prefix>.distinct`` in [0, 1] compares the
    sentences of one node only. Houses have sentences in common, so its mean over nodes is above the share among all
    sentences.
    """
    statistics = bleu_statistics(said, references_of(paths))
    count = float(len(paths))
    return {
        f"{prefix}.bleu": bleu(statistics),
        f"{prefix}.bleu.count": count,
        f"{prefix}.bleu.statistics": statistics.tolist(),
        f"{prefix}.distinct": len({tuple(sentence) for sentence in said}) / count,
        f"{prefix}.distinct.count": count,
    }
