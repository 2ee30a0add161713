"""How well paths were followed, by distances along the edges of the house's graph.

Definitions: success, SPL and oracle success of Anderson et al., On Evaluation of Embodied Navigation Agents, 2018; CLS
of Jain et al., Stay on the Path, ACL 2019; nDTW and sDTW of Ilharco et al., General Evaluation for Instruction
Conditioned Navigation, 2019. A path lists a viewpoint once for each visit: turning on the spot adds nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .houses import Houses
from .layers import mask_of
from .walks import SUCCESS_RADIUS

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
    trail = torch.where(walked, trail, trail[:, :1])
    reference = torch.where(planned, reference, reference[:, :1])
    end = trail.gather(1, trail_length.unsqueeze(1) - 1)
    goal = reference.gather(1, reference_length.unsqueeze(1) - 1)
    error = houses.distances(end, goal).squeeze(1).double()
    nearest = houses.distances(trail, goal.expand_as(trail)).masked_fill(~walked, torch.inf).amin(dim=1)
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
        "cls": _cls(between, walked, planned, length, planned_length),
        "ndtw": ndtw,
        "sdtw": success * ndtw,
    }


def _length(houses: Houses, path: Tensor, used: Tensor) -> Tensor:
    return (houses.distances(path[:, :-1], path[:, 1:]).double() * used[:, 1:]).sum(dim=1)


def _cls(between: Tensor, walked: Tensor, planned: Tensor, length: Tensor, planned_length: Tensor) -> Tensor:
    """Coverage of the reference times how well the length agrees with the covered part of it."""
    apart = between.masked_fill(~walked.unsqueeze(2), torch.inf).amin(dim=1)
    covered = (torch.exp(-apart / SUCCESS_RADIUS) * planned).sum(dim=1) / planned.sum(dim=1)
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
