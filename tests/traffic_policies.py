"""A robot that does not plan, in place of one that does."""

import torch
from fedapps.tasks.driving.world.sessions import Observation, Policy
from fedapps.tasks.driving.world.traffic import THROTTLES
from torch import Tensor


def aim_for(speed: float, tau: int = 3) -> Policy:
    """A robot that stays in its lane and goes to ``speed`` (m/s) as fast as its throttle allows."""

    def policy(observation: Observation) -> Tensor:
        error = speed - observation.states[:, -1, 0, 3]
        throttle = THROTTLES[-1] * torch.sign(error) * (error.abs() > THROTTLES[-1] * 0.1 * tau)
        return torch.stack((throttle, torch.zeros_like(throttle)), dim=-1)[:, None].expand(-1, tau, -1)

    return policy
