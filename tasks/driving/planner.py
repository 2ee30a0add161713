"""Predictors of the human car, and the robot's planner before the lane change (APFL, Section IV-B, phase 1).

The planner is model-predictive control over candidate plans. Every :data:`TAU` steps the robot chooses the plan with
the lowest cost, summed over the horizon and averaged over the forecasts of the human. The robot's own dynamics are
known. Because the 9^20 control sequences are too many, the candidates are sequences that end in a held control.
"""

from itertools import product
from typing import Protocol

import torch
from fedapps.tasks.driving.world.dynamics import DT, pair_cost
from fedapps.tasks.driving.world.sessions import GRAY, HUMAN, ROBOT, Observation, Policy
from torch import Tensor

from .forecaster import Forecaster
from .options import Options
from .setting import Setting, to_motion
from .windows import past

TAU = 3
"""Steps between two plans."""
LANE_ROOM = 0.75
"""Metres by which a car 2 m wide may be off the middle of a lane 3.5 m wide and still be within it."""
GRAY_ROOM = 6.0
"""Minimum distance in metres along the road from the gray car, which the paper's cost does not include."""


class Predictor(Protocol):
    """Predicts the motions of the human car."""

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        """Return human motions ``[S, C, K, H, 4]`` at the next H steps; C and K are 1 if the prediction does not depend
        on them.
        Parameters
        ----------
        motions : Tensor [S, t, cars, 4]
            The observed motions.
        controls : Tensor [S, t, cars, 2]
            The observed controls, not standardised.
        plans : Tensor [S, C, H, 2]
            The standardised controls that the robot considers.
        """


class HoldLastControl:
    """The human keeps its current control. The first data are collected with this predictor (APFL, Section IV-B)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        present = controls[:, -1, HUMAN] / controls.new_tensor(self.setting.control)
        held = present[:, None].expand(-1, plans.shape[2], -1)
        return self.setting.roll_out(motions[:, -1, HUMAN], held)[:, None, None]


class ConstantVelocity:
    """The human keeps its current velocity. This is the non-proactive robot (APFL, Figure 8)."""

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        now = motions[:, -1, HUMAN]
        ahead = DT * torch.arange(1, plans.shape[2] + 1, dtype=now.dtype, device=now.device)
        positions = now[:, None, :2] + ahead[:, None] * now[:, None, 2:]
        return torch.cat((positions, now[:, None, 2:].expand_as(positions)), dim=-1)[:, None, None]


class Forecast:
    """Predicts the human's controls with a forecaster, and its motions with the known dynamics.

    All plans share the ``samples`` draws of z. Until ``min_history`` steps have been observed, fewer than in any
    training window, the human is assumed to keep its control. The model may be on another device than the observations.
    """

    def __init__(self, model: Forecaster, setting: Setting, options: Options) -> None:
        self.model = model
        self.setting = setting
        self.options = options

    @torch.no_grad()
    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        if motions.shape[1] < min(self.options.min_history, self.options.history):
            return HoldLastControl(self.setting)(motions, controls, plans)
        device = next(self.model.parameters()).device
        history = past(self.setting, motions, controls, self.options.history).to(device)
        noise = torch.randn(len(motions), self.options.samples, self.model.latent, device=device)
        expected = self.model.forecast(history, plans.to(device), noise).to(motions.device)
        return self.setting.roll_out(motions[:, -1, HUMAN][:, None, None], expected)


def candidate_plans(kind: str, horizon: int) -> Tensor:
    """Return standardised control sequences ``[C, H, 2]``; the first one coasts straight ahead.

    ``"hold"`` gives 9 controls, each held over the horizon. ``"blocks"`` gives all 9^3 sequences of 3 controls, the
    last one held.
    """
    controls = list(product((0.0, 1.0, -1.0), repeat=2))
    heads = product(controls, repeat=1 if kind == "hold" else min(TAU, horizon))
    starts = torch.tensor(list(heads))
    return torch.cat((starts, starts[:, -1:].expand(-1, horizon - starts.shape[1], -1)), dim=1)


def mpc_policy(predictor: Predictor, setting: Setting, options: Options) -> Policy:
    """A policy for :func:`~.world.sessions.simulate`: first ``TAU`` controls of the best candidate plan.

    Plans that leave the robot's lane or come too close to the gray car are excluded. If all do, the plan with the
    smallest violation is chosen.

    Raises
    ------
    ValueError
        The setting is not simulated.
    """
    scenario = setting.scenario
    if scenario is None:
        raise ValueError(f"scenario {setting.name!r} is recorded: there is no driver to simulate")
    horizon = max(options.horizon, TAU)
    candidates = candidate_plans(options.candidates, horizon)

    def policy(observation: Observation) -> Tensor:
        plans = candidates.to(observation.states)
        answer = observation.controls.new_zeros(len(observation.states), TAU, 2)
        gap = (observation.states[:, :, ROBOT, 1] - observation.states[:, :, HUMAN, 1]).abs()
        negotiating = torch.ones_like(gap[:, 0], dtype=torch.bool)
        if scenario.robot_swaps:  # the other sessions are in phase 2, and the simulation ignores the policy there
            negotiating = (gap < scenario.gap_enough).all(dim=1)
        if not bool(negotiating.any()):
            return answer
        motions = to_motion(observation.states[negotiating, -options.history :])
        controls = observation.controls[negotiating, -options.history :]
        answer[negotiating] = next_controls(predictor, setting, motions, controls, plans)
        return answer

    return policy


def next_controls(predictor: Predictor, setting: Setting, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
    """Return the first :data:`TAU` controls ``[S, TAU, 2]`` of the best of ``plans [C, H, 2]``, not standardised."""
    chosen = best_plan(predictor, setting, motions, controls, plans)
    return plans[chosen, :TAU] * plans.new_tensor(setting.control)


def best_plan(predictor: Predictor, setting: Setting, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
    """Return the index ``[S]`` of the cheapest of ``plans [C, H, 2]`` after ``motions [S, t, cars, 4]``.

    Plans that are excluded in all sessions are not forecast. This changes no random draw, because all plans share their
    samples.
    """
    now = motions[:, -1]
    robot = setting.roll_out(now[:, None, ROBOT], plans.expand(len(now), -1, -1, -1))
    excess = _trespass(setting, robot, now)
    allowed = excess <= excess.min(dim=1, keepdim=True).values
    useful = torch.nonzero(allowed.any(dim=0))[:, 0]
    robot, allowed = robot[:, useful], allowed[:, useful]
    human = predictor(motions, controls, plans[useful].expand(len(now), -1, -1, -1))
    relative = robot[:, :, None] - human
    floor = setting.scenario.cost_floor if setting.scenario else None
    cost = pair_cost(relative[..., :2], relative[..., 2:], floor).sum(dim=-1).mean(dim=-1)
    return useful[cost.masked_fill(~allowed, torch.inf).argmin(dim=1)]


def _trespass(setting: Setting, robot: Tensor, now: Tensor) -> Tensor:
    """The violation in metres ``[S, C]`` of lane and distance by ``robot [S, C, H, 4]``."""
    lane = setting.scenario.robot_lane if setting.scenario else 0.0
    excess = ((robot[..., 0] - lane).abs() - LANE_ROOM).clamp_min(0.0).amax(dim=-1)
    if setting.cars > GRAY:
        steps = torch.arange(1, robot.shape[2] + 1, dtype=robot.dtype, device=robot.device)
        gray = now[:, None, GRAY, 1] + 0.1 * steps * now[:, None, GRAY, 3]
        distance = (robot[..., 1] - gray[:, None]).abs()
        excess = excess + (GRAY_ROOM - distance).clamp_min(0.0).amax(dim=-1)
    return excess
