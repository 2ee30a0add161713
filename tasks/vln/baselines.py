"""What an agent has to beat, and what it cannot: walkers that read no instruction, and the shortest path.

"random" and "forward" are the floors of Anderson et al., CVPR 2018, Section 5: a random direction, then straight on;
"random walk" chooses at random at every viewpoint. All of them make :data:`MOVES` moves and stop.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from fedapps.tasks.base import Batch
from torch import Tensor

from .houses import Houses
from .metrics import navigation_metrics
from .walks import Observation, Walks

MOVES = 5
_LIMIT = 100  # actions, for the shortest path

#: Takes what agents see, the number of the step, the teacher's candidates and a generator; gives candidates.
Walker = Callable[[Observation, int, Tensor, np.random.Generator], Tensor]


def random_walk(seen: Observation, step: int, teacher: Tensor, rng: np.random.Generator) -> Tensor:
    """Any neighbour."""
    if step == MOVES:
        return torch.zeros_like(teacher)
    return _best(seen, torch.from_numpy(rng.random(seen.exists.shape)))


def forward(seen: Observation, step: int, teacher: Tensor, rng: np.random.Generator) -> Tensor:
    """The neighbour that is most straight on."""
    if step == MOVES:
        return torch.zeros_like(teacher)
    return _best(seen, seen.candidate_angles[..., 1])


def random_heading(seen: Observation, step: int, teacher: Tensor, rng: np.random.Generator) -> Tensor:
    """Any neighbour first, and straight on from there."""
    return random_walk(seen, step, teacher, rng) if step == 0 else forward(seen, step, teacher, rng)


def shortest_path(seen: Observation, step: int, teacher: Tensor, rng: np.random.Generator) -> Tensor:
    """The teacher's candidate."""
    return teacher


def _best(seen: Observation, score: Tensor) -> Tensor:
    """The neighbour of the highest score; STOP where there is no neighbour."""
    possible = seen.exists.clone()
    possible[:, 0] = False
    choice = score.masked_fill(~possible, -torch.inf).argmax(dim=1)
    return torch.where(possible.any(dim=1), choice, torch.zeros_like(choice))


WALKERS: Mapping[str, Walker] = {
    "random": random_heading,
    "random walk": random_walk,
    "forward": forward,
    "shortest path": shortest_path,
}


def walk(houses: Houses, episodes: Batch, walker: Walker, rng: np.random.Generator) -> Mapping[str, Tensor]:
    """The metrics of each episode (:func:`~fedapps.tasks.vln.metrics.navigation_metrics`) under a walker."""
    walks = Walks(houses, episodes)
    for step in range(_LIMIT):
        walks.step(walker(walks.observe(), step, walks.teacher(), rng))
        if not len(walks.active):
            break
    return navigation_metrics(houses, *walks.trails(), episodes["path"], episodes["path_length"])
