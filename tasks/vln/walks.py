"""The batched environment: walks through houses, a step of all of them at a time."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.base import Batch

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


def observe(houses: Houses, here: Tensor, facing: Tensor) -> Observation:
    """What agents see at the rows ``here [b]`` facing the view columns ``facing [b]``.

    Headings are relative to the middle of the column faced, elevations to the horizon (Tan et al., 2019).
    """
    exists = houses.exists[here]
    width = int(exists.sum(dim=1).max())
    exists = exists[:, :width]
    views = houses.features[here]
    moves = (houses.neighbour[here, :width] >= 0).unsqueeze(-1)
    rows = torch.arange(len(here), device=here.device).unsqueeze(1)
    heading = houses.heading[here, :width] - facing.unsqueeze(1) * STEP
    elevation = houses.elevation[here, :width]
    angles = torch.stack([heading.sin(), heading.cos(), elevation.sin(), elevation.cos()], dim=-1)
    return Observation(
        views,
        VIEW_ANGLES.to(here.device)[facing],
        views[rows, houses.view[here, :width]] * moves,
        angles * moves,
        exists,
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
        self.reference, self.last = episodes["path"], episodes["path_length"] - 1
        self.goal = self.reference.gather(1, self.last.unsqueeze(1)).squeeze(1)
        self.here, self.facing = self.reference[:, 0].clone(), episodes["facing"].clone()
        self.active = torch.arange(len(self.here), device=self.here.device)
        self._passed = torch.zeros_like(self.here)  # viewpoints of the reference behind the agent, -1 off the path
        self._trail = [self.here.clone()]

    def observe(self) -> Observation:
        """What the active agents see."""
        return observe(self.houses, self.here[self.active], self.facing[self.active])

    def teacher(self) -> Tensor:
        """The candidate that a teacher would take, ``[b]``.

        On the reference path it is the next viewpoint of the path, and STOP at its end; off it the next on the shortest
        path to the goal. Where references are shortest paths, as in R2R, the two are the same.
        """
        here, passed, last = self.here[self.active], self._passed[self.active], self.last[self.active]
        along = torch.where(passed == last, torch.zeros_like(here), self.houses.candidate_to(here, self._next_stop()))
        return torch.where(passed >= 0, along, self.houses.towards(here, self.goal[self.active]))

    def step(self, action: Tensor) -> Tensor:
        """Take a candidate for each active agent and give the rewards, float32 ``[b]``.

        The reward is ±2 for STOP within 3 m of the goal or not, otherwise 1 for a step that brings the goal nearer, -1
        for one that does not (Tan et al., NAACL 2019; Zhou and Wang, ECCV 2022).
        """
        active, houses = self.active, self.houses
        here, goal = self.here[active], self.goal[active]
        distance = houses.distances(here, goal)
        stops = action == 0
        there = torch.where(stops, here, houses.neighbour[here, action])
        nearer = houses.distances(there, goal) < distance
        self.here[active] = there
        self.facing[active] = torch.where(stops, self.facing[active], houses.view[here, action] % HEADINGS)
        passed = self._passed[active]
        on_path = (passed >= 0) & (passed < self.last[active]) & (self._next_stop() == there)
        self._passed[active] = torch.where(stops, passed, torch.where(on_path, passed + 1, torch.full_like(passed, -1)))
        moved = torch.full_like(self.here, -1)
        moved[active] = torch.where(stops, torch.full_like(there, -1), there)
        self._trail.append(moved)
        self.active = active[~stops]
        arrived = torch.where(distance < SUCCESS_RADIUS, STOP_REWARD, -STOP_REWARD)
        return torch.where(stops, arrived, torch.where(nearer, 1.0, -1.0))

    def _next_stop(self) -> Tensor:
        """The viewpoint of the reference after those that each active agent has passed; its last one at the end."""
        following = (self._passed[self.active] + 1).clamp(min=0).minimum(self.last[self.active])
        return self.reference[self.active].gather(1, following.unsqueeze(1)).squeeze(1)

    def trails(self) -> tuple[Tensor, Tensor]:
        """The viewpoints that each agent was at, ``[n, T]``, -1 after the end, and how many they are, ``[n]``."""
        trail = torch.stack(self._trail, dim=1)
        return trail, (trail >= 0).sum(dim=1)
