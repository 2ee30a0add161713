"""Scores of an agent and of a speaker on a node's paths, what they are compared with, and what a report draws of them.

Floors and ceilings: walkers read no instruction. "random" and "forward" are the floors of Anderson et al., CVPR 2018,
Section 5: a random direction, then straight on; "random walk" chooses at random at every viewpoint. All of them make
:data:`MOVES` moves and stop. The ceiling is the shortest path. A speaker has to beat sentences that no speaker made;
those of people tell how much they agree.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from fedapps.base.seeding import generator

from .agent import Agent, greedy, roll_out
from .connectivity import VIEWS
from .dataset import Dataset
from .houses import Houses, assemble
from .instructions import InstructedPath, Vocabulary, words_of
from .layers import mask_of
from .nodes import TESTED, encode, one_per_path, read_houses, selected, sorted_batches
from .options import Options
from .speaker import Speaker, moves_of
from .walks import METRICS, CorpusCounts, Observation, Walks, bleu, bleu_statistics, navigation_metrics, observe

CHUNK = 256  # paths that are walked, described or looked at at once
DRAWN = 6  # paths of a split
MOVES = 5
_LIMIT = 100  # actions, for the shortest path
#: Takes what agents see and a generator; gives candidates.
Move = Callable[[Observation, np.random.Generator], Tensor]
_TRIED = 300  # instructions of which one fits most paths
_LOOK_MOVES = 7  # of a path that count for its look


def anywhere(seen: Observation, rng: np.random.Generator) -> Tensor:
    """Any neighbour."""
    return _best(seen, torch.from_numpy(rng.random(seen.exists.shape)))


def forward(seen: Observation, rng: np.random.Generator) -> Tensor:
    """The neighbour that is most straight on."""
    return _best(seen, seen.candidate_angles[..., 1])


def _best(seen: Observation, score: Tensor) -> Tensor:
    """The neighbour of the highest score; STOP where there is no neighbour."""
    possible = seen.exists.clone()
    possible[:, 0] = False
    choice = score.masked_fill(~possible, -torch.inf).argmax(dim=1)
    return torch.where(possible.any(dim=1), choice, torch.zeros_like(choice))


#: The first move of each walker and its further ones; None follows the teacher.
WALKERS: Mapping[str, tuple[Move, Move] | None] = {
    "random": (anywhere, forward),
    "random walk": (anywhere, anywhere),
    "forward": (forward, forward),
    "shortest path": None,
}


def walk(
    houses: Houses, episodes: Batch, walker: tuple[Move, Move] | None, rng: np.random.Generator
) -> Mapping[str, Tensor]:
    """The metrics of each episode (:func:`~fedapps.tasks.vln.walks.navigation_metrics`) under a walker."""
    walks = Walks(houses, episodes)
    for step in range(_LIMIT):
        if walker is None:
            action = walks.teacher()
        elif step == MOVES:
            action = torch.zeros_like(walks.active)
        else:
            action = walker[step > 0](walks.observe(), rng)
        walks.step(action)
        if not len(walks.active):
            break
    return navigation_metrics(houses, *walks.trails(), episodes["path"], episodes["path_length"])


def references_of(paths: Sequence[InstructedPath]) -> list[list[list[str]]]:
    """The words of what people wrote about each path."""
    return [[words_of(text) for text in path.instructions] for path in paths]


def constant_sentence(paths: Sequence[InstructedPath], seed: int) -> list[str]:
    """Of up to 300 training instructions, the one with the highest BLEU on their paths."""
    rng = generator(seed, "vln.constant")
    some = [paths[index] for index in rng.permutation(len(paths))[:_TRIED]]
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
    return [words_of(paths[index].instructions[0]) for index in nearest.tolist()]


def looks_of(houses: Houses, episodes: Batch) -> Tensor:
    """The directions of the first moves of each path and the mean features along it, float32 ``[n, D]``."""
    rows = one_per_path(episodes)
    path, length = episodes["path"][rows], episodes["path_length"][rows]
    looks = []
    for part in torch.split(torch.arange(len(rows)), CHUNK):
        visited, facing, candidate = moves_of(houses, path[part], length[part], episodes["facing"][rows[part]])
        seen = observe(houses, visited.flatten(), facing.flatten())
        angles = seen.candidate_angles[torch.arange(visited.numel()), candidate.flatten()].view(*visited.shape, 4)
        moves = torch.zeros(len(part), _LOOK_MOVES, 4)
        moves[:, : visited.shape[1]] = angles[:, :_LOOK_MOVES]
        used = mask_of(length[part], visited.shape[1]).unsqueeze(2)
        views = (houses.features[visited].mean(dim=2) * used).sum(dim=1) / length[part].unsqueeze(1)
        looks.append(torch.cat([moves.flatten(1), views], dim=1))
    return torch.cat(looks)


def human_sentences(paths: Sequence[InstructedPath]) -> tuple[list[list[str]], list[InstructedPath]]:
    """One person's words for each path, and the paths with what the others wrote.

    Paths that only one person described are left out.
    """
    several = [path for path in paths if len(path.instructions) > 1]
    others = [replace(path, instructions=path.instructions[1:]) for path in several]
    return [words_of(path.instructions[0]) for path in several], others


#: Metrics such as "val_unseen.sr" by the name of a reference.
References = Mapping[str, Mapping[str, float]]


def walker_references(dataset: Dataset, options: Options) -> References:
    """The metrics of :data:`~fedapps.tasks.vln.evaluation.WALKERS`: means over all instructions of the nodes' houses.

    Draws are keyed by (``sample_seed``, walker, split).
    """
    scores_of: dict[str, dict[str, float]] = {name: {} for name in WALKERS}
    for split in TESTED:
        paths = dataset.of(split, dataset.nodes(options))
        if not paths:
            continue
        graphs = [dataset.graphs[scan] for scan in dict.fromkeys(path.scan for path in paths)]
        viewpoints = sum(len(graph.viewpoints) for graph in graphs)
        houses = assemble(graphs, np.zeros((viewpoints, VIEWS, 0), dtype=np.float32))  # walkers look at no feature
        episodes = encode(paths, houses.rows, Vocabulary(()), options.max_length)
        for name, walker in WALKERS.items():
            scores = walk(houses, episodes, walker, generator(options.sample_seed, "vln.walker", name, split))
            scores_of[name] |= {f"{split}.{metric}": float(values.mean()) for metric, values in scores.items()}
    return _reported(scores_of)


def sentence_references(dataset: Dataset, options: Options) -> References:
    """BLEU-4 in [0, 100] of sentences that no speaker made, for all paths of the nodes' houses.

    "constant sentence" is one training instruction for all paths, "retrieved sentence" an instruction of the most
    similar training path, and "one person" what one person wrote, compared with what the others wrote.
    """
    train = dataset.of("train", dataset.seen)
    scores_of: dict[str, dict[str, float]] = {"constant sentence": {}, "retrieved sentence": {}, "one person": {}}
    constant = constant_sentence(train, options.sample_seed) if train else []
    known = _looks(dataset, "train", dataset.seen, options) if train else None
    for split in TESTED:
        scans = dataset.nodes(options)
        paths = dataset.of(split, scans)
        sentences_of = {"one person": human_sentences(paths)}
        if known is not None and paths:
            asked = _looks(dataset, split, scans, options)
            sentences_of["constant sentence"] = [constant] * len(paths), paths
            sentences_of["retrieved sentence"] = retrieved_sentences(known, train, asked), paths
        for name, (sentences, described) in sentences_of.items():
            if described:
                scores_of[name][f"{split}.bleu"] = bleu(bleu_statistics(sentences, references_of(described)))
    return _reported(scores_of)


def _looks(dataset: Dataset, split: str, scans: Sequence[str], options: Options) -> Tensor:
    """The looks of the paths of a split, one house after another, so that only one house's features are in memory."""
    looks = []
    for scan in scans:
        paths: Sequence[InstructedPath] = dataset.of(split, [scan])
        if paths:
            houses = read_houses(dataset, [scan], options)
            looks.append(looks_of(houses, encode(paths, houses.rows, Vocabulary(()), options.max_length)))
    return torch.cat(looks)


def _reported(references: References) -> References:
    """Without the references that have no metric."""
    return {name: metrics for name, metrics in references.items() if metrics}


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
        batch = {name: tensor.to(houses.features.device) for name, tensor in selected(episodes, some).items()}
        sentences += [words.decode(numbers) for numbers in speaker.describe(houses, batch, max_length - 2, len(words))]
    return sentences


def sentence_metrics(prefix: str, sentences: Sequence[Sequence[str]], paths: Sequence[InstructedPath]) -> Metrics:
    """BLEU-4 of a node's sentences against what people wrote, and the share of them that are distinct.

    ``<prefix>.bleu`` in [0, 100] is of these paths; the sums over houses of its ``<prefix>.bleu.statistics`` give BLEU
    of all houses' paths (:data:`~fedapps.tasks.vln.walks.CORPUS_BLEU`). ``<prefix>.distinct`` in [0, 1] compares the
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
