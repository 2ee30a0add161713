"""Ditto: FedAvg, and on each node a personal model that is held near the shared one.

Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, Algorithm 1, with the local
solver of Algorithm 2, https://arxiv.org/abs/2012.04221.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.personal_model import PersonalModel, step_both, two_models
from fedapps.clients.training import Loss, Phase, Update
from fedapps.tasks.base import Batch, NodeData

from .base import Method


@dataclass(frozen=True)
class DittoOptions:
    """The options of Ditto."""

    lambda_: float = option(
        1.0,
        "weight λ of the distance of a personal model to the received one; 0 = local",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )


class Ditto(Method):
    """Nodes train the shared model as under FedAvg, and beside it a personal model that they keep and evaluate.

    λ = 1 is that of the authors' published runs (https://github.com/litian96/ditto).
    """

    name = "ditto"
    summary = "Ditto: FedAvg, and each node keeps a personal model that is held near the shared one"
    citation = (
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, "
        "https://arxiv.org/abs/2012.04221"
    )
    keeps = "personal model"
    work = "2 models"
    good_for = "uneven data; a few false nodes"
    Options = DittoOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [DittoPart(self.options)]


@dataclass(frozen=True)
class DittoPart(PersonalModel):
    """Minimise f(v) + λ/2 ‖v − w‖², where w are the received parameters, beside f of the shared model.

    Both take a step on each batch, at the same learning rate. The penalty is on the parameters that were received.
    Its anchor is w, not the shared model in training, and v goes on from round to round.
    """

    options: DittoOptions = DittoOptions()

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.options.lambda_ == 0:
            return None
        # Algorithm 2: v ← v − η (∇f(v) + λ (v − w))
        anchor = {name.replace("shared.", "personal.", 1): p.detach().clone() for name, p in shared.items()}
        return QuadraticPrior.around(anchor, self.options.lambda_)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        loss = node_round.task.loss

        def step(model: nn.Module, batch: Batch, update: Update) -> Tensor:
            two = two_models(model)
            return step_both(update, lambda: loss(two.shared, batch), lambda: loss(two.personal, batch))

        return [replace(phase, step=step) for phase in super().plan(plan, model, data, node_round)]

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        """The loss of the personal model, for the phases without a step of both."""
        return lambda model, batch: loss(two_models(model).personal, batch)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase with the penalty, which is what the personal model minimises."""
        prior = self.prior(self.shared_parameters(model, node_round), model, node_round)
        return replace(super().adaptation(phase, model, node_round), prior=prior)

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return sum(parameter.numel() for parameter in shared.values()) if self.options.lambda_ else 0
