"""The cost that the robot's planner minimises before the lane change (APFL, Sections IV-B and IV-C)."""

import torch
from torch import Tensor

from .dynamics import velocity

ALPHA = -3.0
"""Weight of the longitudinal term; it is negative, so that opening the gap lowers the cost."""
BETA = 5000.0
"""Weight of the proximity term, in metres."""
CLOSEST = 0.1
"""Minimum distance in metres between cars in the cost, which keeps the cost finite."""


def stage_cost(robot: Tensor, human: Tensor, floor: float | None = None) -> Tensor:
    """Return ``J = alpha (y_r - y_h)(vy_r - vy_h) + beta / |p_r - p_h|`` for one moment, shape ``[...]``.

    Parameters
    ----------
    robot, human : Tensor [..., 4]
        Bicycle states ``(x, y, heading, speed)``, which broadcast.
    floor : float, optional
        ``C_low`` of the three-car variant: the cost is ``max(floor, J)``.
    """
    return pair_cost(robot[..., :2] - human[..., :2], velocity(robot) - velocity(human), floor)


def pair_cost(offset: Tensor, closing: Tensor, floor: float | None = None) -> Tensor:
    """Return the same cost from the robot's position and velocity relative to the human's, ``[..., 2] = (x, y)``.

    This form also suits the point masses of recorded trials.
    """
    distance = torch.linalg.vector_norm(offset, dim=-1).clamp_min(CLOSEST)
    cost: Tensor = ALPHA * offset[..., 1] * closing[..., 1] + BETA / distance
    return cost if floor is None else torch.clamp_min(cost, floor)
