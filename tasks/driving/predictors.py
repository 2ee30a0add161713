"""Three predictors of the human car, with a common interface."""

from typing import Protocol

import torch
from fedapps.sim.traffic.dynamics import DT
from torch import Tensor

from .forecaster import Forecaster
from .options import Options
from .setting import Setting
from .windows import past

HUMAN = 1


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
