"""Walks through houses, a step of all of them at a time, and how well paths were followed; BLEU of a speaker.

Metrics are of distances along the edges of the house's graph. Definitions: success, SPL and oracle success of Anderson
et al., On Evaluation of Embodied Navigation Agents, 2018; CLS of Jain et al., Stay on the Path, ACL 2019; nDTW and sDTW
of Ilharco et al., General Evaluation for Instruction Conditioned Navigation, 2019. A path lists a viewpoint once for
each visit: turning on the spot adds nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fedapps.tasks.base import Batch, PooledMetric
from torch import Tensor
from torch.nn.functional import pad

from fedapps.base.errors import need

from .connectivity import HEADINGS, STEP, VIEW_ELEVATIONS, VIEW_HEADINGS, angle_features
from .houses import Houses
from .layers import mask_of

SUCCESS_RADIUS = 3.0  # metres from the goal (Anderson et al., CVPR 2018, Section 4)
STOP_REWARD = 2.0
#: Directions of the 36 views relative to the column that the agent faces, [12, 36, 4].
VIEW_ANGLES = torch.stack(
    [
        torch.from_numpy(angle_features(VIEW_HEADINGS - facing * STEP, VIEW_ELEVATIONS)).float()
        for facing in range(HEADINGS)
    ]
)


@dataclass(frozen=True, eq=False)
class Observation:
    """What b agents see and can do: ``views [b, 36, D]``, ``view_angles [b, 36, 4]``, ``candidates [b, C, D]``,
    ``candidate_angles [b, C, 4]`` and which candidates there are, ``exists [b, C]``. Candidate 0 is STOP, all zeros."""

    views: Tensor
    view_angles: Tensor
    candidates: Tensor
    candidate_angles: Tensor
    exists: Tensor


def observe(houses: Houses, viewpoint: Tensor, facing: Tensor) -> Observation:
    """What agents see at the rows ``here [b]`` facing the view columns ``facing [b]``."""
    exists = houses.exists[viewpoint]
    width = int(exists.sum(dim=1).max())
    views = houses.view[viewpoint, :width]
    return Observation(
        houses.features[viewpoint],
        VIEW_ANGLES.to(viewpoint.device)[facing],
        houses.features[viewpoint.unsqueeze(1), views] * houses.leads[viewpoint, :width],
        houses.candidate_angles[viewpoint, facing, :width],
        exists[:, :width],
    )


class Walks:
    """The walks of a batch of episodes; those that have stopped are left out of ``active``.

    Attributes
    ----------
    active : int64 tensor [b]
        Numbers of the episodes that have not stopped; all other arguments and results have a row for each of them.
    here, facing : int64 tensors [n]
        Where all n agents are and the view column that they face.
    """

    def __init__(self, houses: Houses, episodes: Batch) -> None:
        self.houses = houses
        path = episodes["path"]
        self.goal = path.gather(1, episodes["path_length"].unsqueeze(1) - 1).squeeze(1)
        self.here, self.facing = path[:, 0].clone(), episodes["facing"].clone()
        self.active = torch.arange(len(path), device=path.device)
        self._following = pad(path[:, 1:], (0, 1), value=-1)
        self._passed = torch.zeros_like(self.here)  # viewpoints of the reference behind each active agent, -1 off it
        self._trail = [self.here.clone()]

    def observe(self) -> Observation:
        """What the active agents see."""
        return observe(self.houses, self.here[self.active], self.facing[self.active])

    def teacher(self) -> Tensor:
        """The candidate that a teacher would take, ``[b]``.

        On the reference path it is the next viewpoint of the path, and STOP at its end; off it the next on the shortest
        path to the goal. Where references are shortest paths, as in R2R, the two are the same.
        """
        viewpoint = self.here[self.active]
        along = self.houses.candidate_to(viewpoint, self._next_stop())
        return torch.where(self._passed >= 0, along, self.houses.towards(viewpoint, self.goal[self.active]))

    def step(self, action: Tensor) -> Tensor:
        """Take a candidate for each active agent and give the rewards, float32 ``[b]``.

        The reward is ±2 for STOP within 3 m of the goal or not, otherwise 1 for a step that brings the goal nearer, -1
        for one that does not (Tan et al., NAACL 2019; Zhou and Wang, ECCV 2022).
        """
        active, houses = self.active, self.houses
        viewpoint, goal = self.here[active], self.goal[active]
        stops = action == 0
        following = torch.where(stops, viewpoint, houses.neighbour[viewpoint, action])
        distance = houses.distances(viewpoint, goal)
        arrived = torch.where(distance < SUCCESS_RADIUS, STOP_REWARD, -STOP_REWARD)
        nearer = torch.where(houses.distances(following, goal) < distance, 1.0, -1.0)
        passed = torch.where(self._next_stop() == following, self._passed + 1, -1)
        moved = (~stops).nonzero().squeeze(1)
        self.active, self._passed, following = active[moved], passed[moved], following[moved]
        self.here[self.active] = following
        self.facing[self.active] = houses.view[viewpoint, action][moved] % HEADINGS
        self._trail.append(torch.full_like(self.here, -1).index_copy_(0, self.active, following))
        return torch.where(stops, arrived, nearer)

    def _next_stop(self) -> Tensor:
        """The viewpoint of the reference that comes next for each active agent; -1, as STOP's, at its end and off it.

        Off the reference, ``_passed`` is -1 and takes the last column.
        """
        return self._following[self.active, self._passed]

    def trails(self) -> tuple[Tensor, Tensor]:
        """The viewpoints that each agent was at, ``[n, T]``, -1 after the end, and how many they are, ``[n]``."""
        trail = torch.stack(self._trail, dim=1)
        return trail, (trail >= 0).sum(dim=1)


MAX_NGRAM = 4
#: Matching n-grams for n = 1 to 4, all n-grams of the sentences, words of these, and of the shortest reference of each.
STATISTICS = 2 * MAX_NGRAM + 2


class CorpusCounts:
    """Counts n-grams of sentences, also several times, against the same references.

    Parameters
    ----------
    references : sequence of sequences of sequences of str
        For each of n sentences the words of its references, at least one; their number may differ.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[str]]]) -> None:
        bleu = need("sacrebleu.metrics.bleu", "vln", "the BLEU of a speaker")
        most = max(map(len, references))
        columns: list[Any] = [
            [" ".join(of[index]) if index < len(of) else None for of in references] for index in range(most)
        ]
        self._counter = bleu.BLEU(tokenize="none", smooth_method="none", force=True, references=columns)
        self._shortest = sum(min(map(len, of)) for of in references)

    def statistics(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """The :data:`STATISTICS` of the words of n sentences, float64 ``[10]``."""
        counted = self._counter.corpus_score([" ".join(sentence) for sentence in sentences], None)
        return np.array([*counted.counts, *counted.totals, counted.sys_len, self._shortest], dtype=np.float64)


def bleu_statistics(sentences: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> np.ndarray:
    """What BLEU is made of: sums over sentences, so that those of several nodes add up.

    Parameters
    ----------
    sentences : sequence of sequences of str
        The words of n sentences.
    references : sequence of sequences of sequences of str
        As those of :class:`CorpusCounts`.

    Returns
    -------
    float64 ndarray [10]
        See :data:`STATISTICS`.
    """
    return CorpusCounts(references).statistics(sentences)


def bleu(statistics: np.ndarray) -> float:
    """BLEU-4 in [0, 100] of :func:`bleu_statistics` or of a multiple of them; 0 where no 4-gram matches."""
    matches, totals = statistics[:MAX_NGRAM], statistics[MAX_NGRAM : 2 * MAX_NGRAM]
    length, wanted = statistics[-2:]
    if (matches <= 0).any() or (totals < matches).any() or length <= 0:  # the last two: statistics that cannot be
        return 0.0
    brevity = min(0.0, 1.0 - wanted / length)
    return float(100 * np.exp(np.log(matches / totals).mean() + brevity))


#: BLEU-4 of the paths of several nodes; a mean of the nodes' BLEU is another number.
CORPUS_BLEU = PooledMetric(STATISTICS, bleu)
#: Navigation error in metres, success, oracle success, SPL, CLS, nDTW, sDTW.
METRICS = ("ne", "sr", "osr", "spl", "cls", "ndtw", "sdtw")
_SHORTEST = 0.01  # metres that a path counts at least


def navigation_metrics(
    houses: Houses, trail: Tensor, trail_length: Tensor, reference: Tensor, reference_length: Tensor
) -> Mapping[str, Tensor]:
    """The metrics of each path.

    Parameters
    ----------
    houses : Houses
        Whose distances count.
    trail, reference : int64 tensors [n, T], [n, R]
        Rows of the viewpoints walked, and of those that the instruction describes; what follows the end is ignored.
    trail_length, reference_length : int64 tensors [n]
        How many viewpoints the paths have.

    Returns
    -------
    mapping of str to float64 tensors [n]
        :data:`METRICS`: metres for "ne", otherwise in [0, 1].
    """
    walked, planned = (
        mask_of(*each) for each in ((trail_length, trail.shape[1]), (reference_length, reference.shape[1]))
    )
    trail = torch.where(walked, trail, trail[:, :1])  # the start is in the path anyway
    reference = torch.where(planned, reference, reference[:, :1])
    end = trail.gather(1, trail_length.unsqueeze(1) - 1)
    goal = reference.gather(1, reference_length.unsqueeze(1) - 1)
    error = houses.distances(end, goal).squeeze(1).double()
    nearest = houses.distances(trail, goal.expand_as(trail)).amin(dim=1)
    success = (error < SUCCESS_RADIUS).double()
    length, planned_length = _length(houses, trail, walked), _length(houses, reference, planned)
    shortest = houses.distances(trail[:, :1], goal).squeeze(1).double()
    between = houses.distances(trail.unsqueeze(2), reference.unsqueeze(1)).double()
    ndtw = torch.exp(-_dtw(between, trail_length, reference_length) / (SUCCESS_RADIUS * reference_length))
    return {
        "ne": error,
        "sr": success,
        "osr": (nearest < SUCCESS_RADIUS).double(),
        "spl": success * shortest / torch.maximum(shortest, length).clamp(min=_SHORTEST),
        "cls": _cls(between, planned, length, planned_length),
        "ndtw": ndtw,
        "sdtw": success * ndtw,
    }


def _length(houses: Houses, path: Tensor, used: Tensor) -> Tensor:
    return (houses.distances(path[:, :-1], path[:, 1:]).double() * used[:, 1:]).sum(dim=1)


def _cls(between: Tensor, planned: Tensor, length: Tensor, planned_length: Tensor) -> Tensor:
    """Coverage of the reference times how well the length agrees with the covered part of it."""
    covered = (torch.exp(-between.amin(dim=1) / SUCCESS_RADIUS) * planned).sum(dim=1) / planned.sum(dim=1)
    expected = covered * planned_length
    total = expected + (expected - length).abs()
    return covered * torch.where(total > 0, expected / total.clamp(min=1e-12), torch.ones_like(total))


def _dtw(between: Tensor, trail_length: Tensor, reference_length: Tensor) -> Tensor:
    """The cost ``[n]`` of the best alignment of both paths, given distances ``[n, T, R]``."""
    count, rows, columns = between.shape
    cost = between.new_full((count, rows + 1, columns + 1), torch.inf)
    cost[:, 0, 0] = 0
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            before = torch.stack([cost[:, row - 1, column], cost[:, row, column - 1], cost[:, row - 1, column - 1]])
            cost[:, row, column] = between[:, row - 1, column - 1] + before.amin(dim=0)
    return cost[torch.arange(count), trail_length, reference_length]
