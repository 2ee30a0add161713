"""pFedMe: each node's personal model is the shared one after a regularised step towards its data.

T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1 and Equations 3 and 7,
https://arxiv.org/abs/2006.08848.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.personal_model import PersonalModel, TwoModels, two_models
from fedapps.clients.rules import spend_step
from fedapps.clients.training import Loss, Phase, Update
from fedapps.config.run_config import RunConfig
from fedapps.tasks.base import Batch, NodeData, Task

from .base import Conflict, Method, required


@dataclass(frozen=True)
class PFedMeOptions:
    """The options of pFedMe."""

    lambda_: float = option(
        15.0,
        "weight λ of the distance of a personal model θ to the node's copy x of the shared one; a step moves x by "
        "learning-rate * λ of the way to θ",
        above=0,
        search=Range(1, 15, log=True),
    )
    personal_steps: int = option(5, "steps K of θ on each batch", minimum=1)
    personal_learning_rate: float = option(
        0.0, "learning rate of the steps of θ; 0 = half of learning-rate", minimum=0, search=Range(0.001, 0.1, log=True)
    )


class PFedMe(Method):
    """Nodes descend the Moreau envelopes of their losses; they keep the minimisers, their personal models.

    The defaults λ = 15 and K = 5 come from the authors' runs on MNIST (https://github.com/CharlieDinh/pFedMe). These
    have a learning rate of 0.005 for x and of 0.09 or 0.1 for θ. Here, the default rate of θ is half of the run's
    learning rate, because a fixed rate diverges on tasks with steeper losses.
    """

    name = "pfedme"
    summary = "pFedMe: each node fits a personal model near its copy of the shared one, and moves the copy towards it"
    citation = (
        "T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, "
        "https://arxiv.org/abs/2006.08848"
    )
    keeps = "personal model"
    work = "5 gradients a step"
    good_for = "uneven data, personal evaluation"
    Options = PFedMeOptions

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        why = "its steps are plain gradient steps, on x with learning-rate, on θ with personal-learning-rate"
        yield from required(run, self.name, why, optimizer="sgd", momentum=0.0, clip_norm=0.0)
        for key, rate, fields in (
            ("learning-rate", run.training.learning_rate, {"learning_rate", "methods"}),
            (f"{self.name}.personal-learning-rate", self.options.personal_learning_rate, {"methods"}),
        ):
            if rate * self.options.lambda_ >= 2:
                yield (
                    fields,
                    f"{key} = {rate:g} and {self.name}.lambda = {self.options.lambda_:g}: their product must be below "
                    "2, or each step goes further beyond its end than it started from: lower one of them",
                )

    def local_parts(self) -> Sequence[LocalPart]:
        return [PFedMePart(self.options)]


@dataclass(frozen=True)
class PFedMePart(PersonalModel):
    """On each batch take K steps on f(θ) + λ/2 ‖θ − x‖², then x ← x − η λ (x − θ), where η is the learning rate.

    x and θ start as what was received. Within a round θ goes on from batch to batch; the node keeps and evaluates the
    last one and sends x. The statistics of normalisation layers in x are those of θ: no batch goes through x. With
    K = 1, η λ = 1 and η as the learning rate of θ this is FedAvg.
    """

    options: PFedMeOptions = PFedMeOptions()

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
        return self.options.personal_learning_rate or learning_rate / 2

    def _step(
        self, two: TwoModels, batch: Batch, update: Update, loss: Loss, weight_decay: float, rate: float
    ) -> Tensor:
        shared = dict(two.shared.named_parameters())
        pairs = [(p, shared[name]) for name, p in two.personal.named_parameters() if p.requires_grad]
        for number in range(self.options.personal_steps):
            if number:
                spend_step()
            # Equation 7: a gradient step of θ on f(θ) + λ/2 ‖θ − x‖²
            value = loss(two.personal, batch)
            gradients = torch.autograd.grad(value, [p for p, _ in pairs], allow_unused=True)
            with torch.no_grad():
                for (p, x), gradient in zip(pairs, gradients, strict=True):
                    if gradient is not None:
                        decayed = gradient.add(p, alpha=weight_decay) if weight_decay else gradient
                        p.sub_(decayed + self.options.lambda_ * (p - x), alpha=rate)
        with torch.no_grad():
            for p, x in pairs:  # Algorithm 1: x ← x − η λ (x − θ)
                x.lerp_(p, update.rate * self.options.lambda_)
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
            prior=QuadraticPrior.around(anchor, self.options.lambda_),
            training=replace(phase.training, learning_rate=self._personal_rate(phase.training.learning_rate)),
        )
