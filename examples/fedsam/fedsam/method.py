"""FedSAM: FedAvg whose nodes look for flat minima.

Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022,
https://arxiv.org/abs/2206.02618. The step is Algorithm 1 of Foret et al., Sharpness-Aware Minimization for Efficiently
Improving Generalization, ICLR 2021, https://arxiv.org/abs/2010.01412.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from fedapps.clients.local_part import PHASES, TRAINING_STEP, LocalPart, NodeRound
from fedapps.clients.training import Loss, ModelWithLoss, Phase, Update
from fedapps.tasks.base import Batch, NodeData
from torch import Tensor, nn

from fedapps.base.options import Around, option
from fedapps.methods.base import Method


@dataclass(frozen=True)
class FedSamOptions:
    """The options of FedSAM."""

    radius: float = option(
        0.05, "radius ρ of the ball in which a step looks for the largest loss", minimum=0, search=Around(10)
    )


class FedSam(Method):
    """FedAvg of nodes that train by sharpness-aware minimisation."""

    name = "fedsam"
    summary = "FedSAM: nodes train by sharpness-aware minimisation"
    citation = (
        "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, "
        "https://arxiv.org/abs/2206.02618"
    )
    Options = FedSamOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedSamPart(self.options.radius)]


@dataclass(frozen=True)
class FedSamPart(LocalPart):
    """Take each step with the gradient at θ + ρ g / ‖g‖, where g is the gradient at θ.

    Parameters
    ----------
    radius : float
        ρ ≥ 0. With 0 this is plain training.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES, TRAINING_STEP})

    radius: float

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        if self.radius == 0:
            return plan
        loss, radius = node_round.task.loss, self.radius

        def step(model: nn.Module, batch: Batch, update: Update) -> Tensor:
            return sharp_step(loss, model, batch, update, radius)

        return [replace(phase, step=step) for phase in plan]


def sharp_step(loss: Loss, model: nn.Module, batch: Batch, update: Update, radius: float) -> Tensor:
    """Take the step of one batch, and return the loss at the parameters before it."""
    value = loss(model, batch)
    named = dict(update.named)
    gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    norm = torch.stack([g.norm() for g in gradients if g is not None]).norm().clamp(min=1e-12)
    pairs = zip(named.items(), gradients, strict=True)
    nearby = {name: p + radius / norm * g for (name, p), g in pairs if g is not None}
    update(ModelWithLoss(model, loss).with_parameters(nearby, batch))
    return value
