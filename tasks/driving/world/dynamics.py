"""The motion of a car, and the cost of it: CARLO's kinematic bicycle, and the point mass of recorded trials.

A car's state is ``[..., 4] = (x, y, heading, speed)``: ``x`` lateral and ``y`` longitudinal in metres, ``heading`` in
radians from the ``+y`` axis towards ``+x`` (0 drives straight along the road), ``speed`` in m/s, never negative. A
control is ``[..., 2] = (throttle, steer)``: m/s² and radians at the front wheel; positive steer turns towards ``+x``. A
control is held for one step of :data:`DT` seconds. The cost is what the robot's planner minimises before the lane
change (APFL, Sections IV-B and IV-C).

Reference: CARLO (Cao et al., "Reinforcement Learning based Control of Imitative Policies for Near-Accident Driving",
RSS 2020); the bicycle is that of Kong et al., IV 2015, with the centre of mass midway.
"""

import torch
from torch import Tensor

DT = 0.1
"""Seconds per step."""
THROTTLES = (-1.5, 0.0, 1.5)
"""The allowed throttles, m/s² (APFL, Section IV-B)."""
STEERS = (-0.04, 0.0, 0.04)
"""The allowed steering angles, radians (APFL, Section IV-B)."""
FRICTION = 0.06
"""Deceleration without throttle, m/s²."""
REAR_AXLE = 2.0
"""Metres from the centre of mass to either axle of a 4 m car."""
ALPHA = -3.0
"""Weight of the longitudinal term; it is negative, so that opening the gap lowers the cost."""
BETA = 5000.0
"""Weight of the proximity term, in metres."""
CLOSEST = 0.1
"""Minimum distance in metres between cars in the cost, which keeps the cost finite."""


def step(state: Tensor, control: Tensor) -> Tensor:
    """Return the state ``[..., 4]`` one step after ``state [..., 4]`` under ``control [..., 2]``; shapes broadcast."""
    x, y, heading, speed = state.unbind(-1)
    throttle, steer = control.unbind(-1)
    slip = torch.atan(0.5 * torch.tan(steer))
    new_speed = (speed + (throttle - FRICTION) * DT).clamp_min(0.0)
    distance = 0.5 * (speed + new_speed) * DT
    new_heading = heading + distance / REAR_AXLE * torch.sin(slip)
    course = 0.5 * (heading + new_heading) + slip
    x, y = x + distance * torch.sin(course), y + distance * torch.cos(course)
    return torch.stack(torch.broadcast_tensors(x, y, new_heading, new_speed), dim=-1)


def rollout(state: Tensor, controls: Tensor) -> Tensor:
    """Return the states ``[..., T, 4]`` after each of ``controls [..., T, 2]``, from ``state [..., 4]``.

    The result equals ``T`` calls of :func:`step` up to rounding, but needs no loop and is differentiable. Leading
    dimensions broadcast, so ``state[:, None]`` meets many candidate sequences.
    """
    x, y, heading, speed = (part.unsqueeze(-1) for part in state.unbind(-1))
    throttle, steer = controls.unbind(-1)
    slip = torch.atan(0.5 * torch.tan(steer))
    unclipped = speed + torch.cumsum((throttle - FRICTION) * DT, dim=-1)
    # max(0, .) at every step in closed form (Lindley's recursion): subtract the running minimum below zero
    speeds = unclipped - torch.cummin(unclipped, dim=-1).values.clamp_max(0.0)
    distance = 0.5 * DT * (speeds + _before(speed, speeds))
    headings = heading + torch.cumsum(distance / REAR_AXLE * torch.sin(slip), dim=-1)
    course = 0.5 * (headings + _before(heading, headings)) + slip
    xs = x + torch.cumsum(distance * torch.sin(course), dim=-1)
    ys = y + torch.cumsum(distance * torch.cos(course), dim=-1)
    return torch.stack((xs, ys, headings, speeds), dim=-1)


def velocity(state: Tensor) -> Tensor:
    """Return ``[..., 2] = (vx, vy)`` in m/s, lateral then longitudinal, of ``state [..., 4]``."""
    heading, speed = state[..., 2], state[..., 3]
    return torch.stack((speed * torch.sin(heading), speed * torch.cos(heading)), dim=-1)


def point_mass_rollout(state: Tensor, controls: Tensor) -> Tensor:
    """Return the states ``[..., T, 4] = (x, y, vx, vy)`` of a double integrator, from a ``state [..., 4]`` of the same
    form.

    ``controls [..., T, 2] = (ax, ay)`` in m/s² are held for one step each. This is the model of recorded trials, whose
    controls are accelerations.
    """
    position, speed = state[..., None, :2], state[..., None, 2:]
    speeds = speed + torch.cumsum(controls * DT, dim=-2)
    before = torch.cat((speed.expand_as(speeds[..., :1, :]), speeds[..., :-1, :]), dim=-2)
    positions = position + torch.cumsum(0.5 * DT * (before + speeds), dim=-2)
    return torch.cat((positions, speeds), dim=-1)


def quantise(control: Tensor) -> Tensor:
    """Round ``control [..., 2]`` to the nearest allowed throttle and steer; both sets are symmetric."""
    limits = control.new_tensor((THROTTLES[-1], STEERS[-1]))
    return (control / limits).round().clamp(-1.0, 1.0) * limits


def _before(first: Tensor, values: Tensor) -> Tensor:
    """``values [..., T]`` delayed by one step, starting with ``first [..., 1]``."""
    return torch.cat((first.expand_as(values[..., :1]), values[..., :-1]), dim=-1)


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
