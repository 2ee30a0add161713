"""pFedMe on a node: gradient steps on the Moreau envelope of the loss, whose minimiser is the personal model.

T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1 and Equations 3 and 7,
https://arxiv.org/abs/2006.08848.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from fedapps.clients.limits import spend_step
from fedapps.clients.local_part import NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.personal_model import PersonalModel, TwoModels, two_models
from fedapps.clients.training import Loss, Phase, Update
from fedapps.tasks.base import Batch, NodeData
from torch import Tensor, nn

from fedapps.base.options import option


@dataclass(frozen=True)
class MoreauEnvelopes(PersonalModel):
    """On each batch take K steps on f(θ) + λ/2 ‖θ − x‖², then x ← x − η λ (x − θ), where η is the learning rate.

    x and θ start as what was received. Within a round θ goes on from batch to batch; the node keeps and evaluates the
    last one and sends x. The statistics of normalisation layers in x are those of θ: no batch goes through x. With
    K = 1, η λ = 1 and η as the learning rate of θ this is FedAvg.

    Parameters
    ----------
    pfedme_lambda : float
        λ > 0.
    pfedme_steps : int
        K ≥ 1.
    pfedme_learning_rate : float
        The learning rate of θ; 0 = half the learning rate of x.
    """

    pfedme_lambda: float = option(15.0, "the weight λ", above=0)
    pfedme_steps: int = option(5, "steps K of θ on each batch", minimum=1)
    pfedme_learning_rate: float = option(0.0, "the learning rate of θ; 0 = half of x's", minimum=0)

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        two = two_models(model)
        two.personal.load_state_dict(two.shared.state_dict())
        return {}

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        loss, weight_decay = node_round.task.loss, node_round.settings.training.weight_decay
        rate = self._personal_rate(node_round.settings.training.learning_rate)

        def step(model: nn.Module, batch: Batch, update: Update) -> Tensor:
            return self._step(two_models(model), batch, update, loss, weight_decay, rate)

        return [replace(phase, step=step) for phase in super().plan(plan, model, data, node_round)]

    def _personal_rate(self, learning_rate: float) -> float:
        return self.pfedme_learning_rate or learning_rate / 2

    def _step(
        self, two: TwoModels, batch: Batch, update: Update, loss: Loss, weight_decay: float, rate: float
    ) -> Tensor:
        shared = dict(two.shared.named_parameters())
        pairs = [(p, shared[name]) for name, p in two.personal.named_parameters() if p.requires_grad]
        for number in range(self.pfedme_steps):
            if number:
                spend_step()
            value = loss(two.personal, batch)
            gradients = torch.autograd.grad(value, [p for p, _ in pairs], allow_unused=True)
            with torch.no_grad():
                for (p, x), gradient in zip(pairs, gradients, strict=True):
                    if gradient is not None:
                        decayed = gradient.add(p, alpha=weight_decay) if weight_decay else gradient
                        p.sub_(decayed + self.pfedme_lambda * (p - x), alpha=rate)
        with torch.no_grad():
            for p, x in pairs:
                x.lerp_(p, update.rate * self.pfedme_lambda)
            for mine, sent in zip(two.personal.buffers(), two.shared.buffers(), strict=True):
                sent.copy_(mine)
        return value.detach()

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        """The loss of θ, for a phase without the steps of both."""
        return lambda model, batch: loss(two_models(model).personal, batch)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase in which a new node finds its θ for the received parameters."""
        shared = self.shared_parameters(model, node_round)
        anchor = {name.replace("shared.", "personal.", 1): p.detach().clone() for name, p in shared.items()}
        return replace(
            super().adaptation(phase, model, node_round),
            prior=QuadraticPrior.around(anchor, self.pfedme_lambda),
            training=replace(phase.training, learning_rate=self._personal_rate(phase.training.learning_rate)),
        )
