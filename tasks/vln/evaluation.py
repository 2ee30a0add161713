"""Scores of an agent and of a speaker on a node's paths, and what a report draws of them.

It draws a house from above, walks through it beside what was described, and sentences.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from .agent import Agent
from .episodes import chosen, one_per_path, sorted_batches
from .houses import Houses
from .instructions import InstructedPath
from .learning import greedy, roll_out
from .metrics import METRICS, bleu, bleu_statistics, navigation_metrics
from .references import references_of
from .speaker import Speaker
from .vocabulary import Vocabulary

CHUNK = 256  # episodes that are walked at once
DRAWN = 6  # paths of a split


@torch.no_grad()
def walk_all(agent: Agent, houses: Houses, episodes: Batch, max_actions: int) -> tuple[Mapping[str, Tensor], Tensor]:
    """The metrics of each episode under the agent's best guesses, float64 ``[n]`` each, and its trails ``[n, T]``, -1
    after the end."""
    count = len(episodes["length"])
    metrics = {name: torch.zeros(count, dtype=torch.float64) for name in METRICS}
    trails = torch.full((count, max_actions + 1), -1)
    for rows, batch in sorted_batches(episodes, CHUNK):
        on_device = {name: tensor.to(houses.features.device) for name, tensor in batch.items()}
        walked = roll_out(agent, houses, on_device, greedy, max_actions)
        trails[rows, : walked.trail.shape[1]] = walked.trail.cpu()
        scores = navigation_metrics(
            houses, walked.trail, walked.trail_length, on_device["path"], on_device["path_length"]
        )
        for name, values in scores.items():
            metrics[name][rows] = values.cpu()
    return metrics, trails


def means(prefix: str, metrics: Mapping[str, Tensor]) -> Metrics:
    """The mean of each metric, with how many episodes it is of: those of several houses then weigh by episodes."""
    averages: Metrics = {}
    for name, values in metrics.items():
        averages |= {f"{prefix}.{name}": float(values.mean()), f"{prefix}.{name}.count": float(len(values))}
    return averages


def describe_all(
    speaker: Speaker, houses: Houses, episodes: Batch, words: Vocabulary, max_length: int
) -> list[list[str]]:
    """The words that the speaker has for each path of a split, in the order of the paths."""
    rows = one_per_path(episodes)
    sentences: list[list[str]] = []
    for some in torch.split(rows, CHUNK):
        batch = {name: tensor.to(houses.features.device) for name, tensor in chosen(episodes, some).items()}
        sentences += [words.decode(numbers) for numbers in speaker.describe(houses, batch, max_length - 2, len(words))]
    return sentences


def sentence_metrics(prefix: str, sentences: Sequence[Sequence[str]], paths: Sequence[InstructedPath]) -> Metrics:
    """BLEU-4 of a node's sentences against what people wrote, and the share of them that are distinct.

    ``<prefix>.bleu`` in [0, 100] is of these paths; the sums over houses of its ``<prefix>.bleu.statistics`` give BLEU
    of all houses' paths (:data:`~fedapps.tasks.vln.metrics.CORPUS_BLEU`). ``<prefix>.distinct`` in [0, 1] compares the
    sentences of one node only. Houses have sentences in common, so its mean over nodes is above the share among all
    sentences.
    """
    statistics = bleu_statistics(sentences, references_of(paths))
    count = float(len(paths))
    return {
        f"{prefix}.bleu": bleu(statistics),
        f"{prefix}.bleu.count": count,
        f"{prefix}.bleu.statistics": statistics.tolist(),
        f"{prefix}.distinct": len({tuple(sentence) for sentence in sentences}) / count,
        f"{prefix}.distinct.count": count,
    }


def house_traces(houses: Houses) -> dict[str, np.ndarray]:
    """``viewpoints [V, 3]`` in metres and ``edges [E, 2]``, the rows that they join."""
    start, column = np.nonzero(houses.neighbour.cpu().numpy() >= 0)
    stop = houses.neighbour.cpu().numpy()[start, column]
    edges = np.stack([start, stop], axis=1)[start < stop]
    return {"viewpoints": houses.positions.cpu().numpy(), "edges": edges}


def walk_traces(
    split: str, trails: Tensor, scores: Mapping[str, Tensor], episodes: Batch, paths: Sequence[InstructedPath]
) -> dict[str, np.ndarray]:
    """The walks of the agent for one instruction of each of the first paths of a split.

    ``<split>.<number>.walked`` and ``.reference`` are rows of viewpoints, ``.error`` is the distance of the end from
    the goal in metres, ``.success`` 1 or 0, and ``.instruction`` the text.
    """
    arrays: dict[str, np.ndarray] = {}
    for number, row in enumerate(one_per_path(episodes)[:DRAWN].tolist()):
        walked, reference = trails[row].numpy(), episodes["path"][row].numpy()
        arrays |= {
            f"{split}.{number}.walked": walked[walked >= 0],
            f"{split}.{number}.reference": reference[reference >= 0],
            f"{split}.{number}.error": scores["ne"][row].numpy(),
            f"{split}.{number}.success": scores["sr"][row].numpy(),
            f"{split}.{number}.instruction": _bytes(paths[number].instructions[0]),
        }
    return arrays


def sentence_traces(
    split: str, sentences: Sequence[Sequence[str]], paths: Sequence[InstructedPath]
) -> dict[str, np.ndarray]:
    """For the first paths of a split, what the speaker said, ``<split>.<number>.said``, and the ``.instruction`` that
    a person wrote."""
    arrays: dict[str, np.ndarray] = {}
    for number, (sentence, path) in enumerate(list(zip(sentences, paths, strict=True))[:DRAWN]):
        arrays |= {
            f"{split}.{number}.said": _bytes(" ".join(sentence)),
            f"{split}.{number}.instruction": _bytes(path.instructions[0]),
        }
    return arrays


def _bytes(text: str) -> np.ndarray:
    """A text as the array of its bytes in UTF-8: files of arrays hold no strings."""
    return np.frombuffer(text.encode(), dtype=np.uint8)
