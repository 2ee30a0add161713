"""Outcomes of sessions: the quantities of APFL, Figures 8 and 9, and collisions."""

import torch
from torch import Tensor

from .dynamics import DT
from .sessions import HUMAN, ROBOT, Sessions

CAR_LENGTH, CAR_WIDTH = 4.0, 2.0
"""Metres."""


def lane_change_time(sessions: Sessions) -> Tensor:
    """Return the seconds ``[S]`` until the lane change could start; the session's duration if it never could."""
    start = sessions.lane_change_start
    return torch.where(start >= 0, start, sessions.length - 1) * DT


def censored(sessions: Sessions) -> Tensor:
    """Return which sessions never started a lane change, bool ``[S]``."""
    return sessions.lane_change_start < 0


def start_distance(sessions: Sessions) -> Tensor:
    """Return the metres ``[S]`` between robot and human when the lane change could start, NaN if it never could."""
    rows = torch.arange(len(sessions), device=sessions.length.device)
    there = sessions.states[rows, sessions.lane_change_start.clamp_min(0)]
    distance = torch.linalg.vector_norm(there[:, ROBOT, :2] - there[:, HUMAN, :2], dim=-1)
    return torch.where(sessions.lane_change_start >= 0, distance, torch.nan)


def mean_cost(sessions: Sessions) -> Tensor:
    """Return the mean stage cost ``[S]`` over the rows in which the policy drives, including the first row.

    The rows end with the start of the lane change, or with the session if there was none or if the scenario's robot
    never leaves its planner.
    """
    last = sessions.length - 1
    if sessions.scenario.robot_swaps:
        last = torch.where(sessions.lane_change_start >= 0, sessions.lane_change_start, last)
    counted = torch.arange(sessions.cost.shape[1], device=last.device) <= last[:, None]
    return (sessions.cost * counted).sum(dim=1) / (last + 1)


def collided(sessions: Sessions) -> Tensor:
    """Return whether the robot ever overlapped another car, bool ``[S]``, as boxes of 4 m x 2 m, ignoring headings."""
    offset = (sessions.states[:, :, ROBOT + 1 :, :2] - sessions.states[:, :, None, ROBOT, :2]).abs()
    touching = (offset[..., 0] < CAR_WIDTH) & (offset[..., 1] < CAR_LENGTH)
    return (touching.any(dim=2) & sessions.valid).any(dim=1)
