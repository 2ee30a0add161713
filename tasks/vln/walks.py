"""The batched environment: walks through houses, a step of all of them at a time."""

from dataclasses import dataclass

import torch
from fedapps.tasks.base import Batch
from torch import Tensor
from torch.nn.functional import pad

from .geometry import HEADINGS, STEP, VIEW_ELEVATIONS, VIEW_HEADINGS, angle_features
from .houses import Houses

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
