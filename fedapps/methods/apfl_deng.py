"""APFL of Deng et al.: nodes evaluate a mixture of the shared model and a personal one.

Deng et al., Adaptive Personalized Federated Learning, 2020, Algorithm 1 and Equations 3 to 6,
https://arxiv.org/abs/2003.13461.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.base.seeding import TorchState
from fedapps.clients.arrays import PREFIX, Arrays, load_arrays, memory_of
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.personal_model import PersonalModel, TwoModels, copy_of, step_both, two_models
from fedapps.clients.rules import spend_step
from fedapps.clients.training import Loss, ModelWithLoss, Phase, Update
from fedapps.tasks.base import Batch, Metrics, NodeData

from .base import Method

_SHARE = "apfl-deng.alpha"


@dataclass(frozen=True)
class ApflDengOptions:
    """The options of the mixture."""

    alpha: float = option(
        0.5,
        "share α of the personal model in the mixture, at first; 0 = fedavg, 1 = local",
        minimum=0,
        maximum=1,
        search=Range(0, 1),
    )
    adaptive: bool = option(True, "each node learns its α, by a step of gradient descent on it in every round")


class ApflDeng(Method):
    """Nodes train the shared model as under FedAvg, and a personal model for the loss of its mixture with this one."""

    name = "apfl-deng"
    summary = "APFL of Deng et al.: FedAvg, and each node learns a personal model to mix with it (apfl is Nakanoya's)"
    citation = (
        "Deng et al., Adaptive Personalized Federated Learning, 2020, https://arxiv.org/abs/2003.13461; another "
        "method than the APFL of Nakanoya et al., which is apfl"
    )
    keeps = "personal model, its share"
    work = "2 models"
    good_for = "some nodes differ more than others"
    Options = ApflDengOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [ApflDengPart(self.options)]


@dataclass(frozen=True)
class ApflDengPart(PersonalModel):
    """Train v for the loss of v̄ = α v + (1 − α) w, with w as it is, beside the shared model w for its own loss.

    Both take a step on each batch, with gradients at the same w and v. On the first batch of a round, before these
    steps, α ← α − η ⟨v − w, ∇f(v̄)⟩, clipped to [0, 1], where η is the learning rate. The node keeps v and α, and
    evaluates v̄ with the received w. The statistics of normalisation layers in v̄ are its own.
    """

    options: ApflDengOptions = ApflDengOptions()

    # -- memory and model ------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        two = super().wrap(model, node_round)
        kept = memory_of(node_round.kept).get(_SHARE)
        share = self.options.alpha if kept is None else float(kept)
        two.register_buffer("alpha", torch.tensor(share, dtype=torch.float64))
        return two

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return super().remember(model, node_round) | {_SHARE: np.array(_share(two_models(model)))}

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        share = {name: array for name, array in kept.items() if name == PREFIX + _SHARE}
        return super().next_stage(carried, kept) | share

    def evaluated(self, model: TwoModels) -> nn.Module:
        mixed = copy_of(model.personal)
        load_arrays(mixed, {name: tensor.detach() for name, tensor in _mixed(model).items()})
        return mixed.train(model.training)

    # -- training --------------------------------------------------------------------------------------------------

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        loss, two = node_round.task.loss, two_models(model)
        of = ModelWithLoss(two.personal, loss)
        learn = self.options.adaptive

        def step(model: nn.Module, batch: Batch, update: Update) -> Tensor:
            nonlocal learn
            if learn:
                spend_step()
                _learn_share(two, of, batch, update.rate)
                learn = False
            return step_both(update, lambda: loss(two.shared, batch), lambda: of.with_parameters(_mixed(two), batch))

        return [replace(phase, step=step) for phase in super().plan(plan, model, data, node_round)]

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        """The loss of the mixture, for the phases without a step of both."""
        two = two_models(model)
        of = ModelWithLoss(two.personal, loss)
        return lambda model, batch: of.with_parameters(_mixed(two), batch)

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {_SHARE: _share(two_models(model))}


def _share(two: TwoModels) -> float:
    return float(two.get_buffer("alpha"))


def _mixed(two: TwoModels) -> dict[str, Tensor]:
    """The parameters of v̄, with a gradient for those of v alone; exactly w where v = w."""
    # Algorithm 1: v̄ = α v + (1 − α) w
    shared, share = dict(two.shared.named_parameters()), _share(two)
    return {name: torch.lerp(shared[name].detach(), v, share) for name, v in two.personal.named_parameters()}


def _learn_share(two: TwoModels, of: ModelWithLoss, batch: Batch, rate: float) -> None:
    """Take a step of gradient descent on α; it leaves no trace in statistics and random numbers."""
    buffers = {name: buffer.clone() for name, buffer in two.personal.named_buffers()}
    with TorchState():
        share = two.get_buffer("alpha").detach().clone().requires_grad_()
        shared = dict(two.shared.named_parameters())
        mixed = {
            name: w + share.to(w.dtype) * (v.detach() - w)
            for name, v in two.personal.named_parameters()
            for w in [shared[name].detach()]
        }
        # Algorithm 1 with adaptive α: α ← α − η ⟨v − w, ∇f(v̄)⟩, which is the derivative by α
        (slope,) = torch.autograd.grad(of.with_parameters(mixed, batch), [share])
    with torch.no_grad():
        for name, buffer in two.personal.named_buffers():
            buffer.copy_(buffers[name])
        two.get_buffer("alpha").copy_((share - rate * slope).clamp(0, 1))
