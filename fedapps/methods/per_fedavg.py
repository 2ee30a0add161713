"""Per-FedAvg: a shared model from which one gradient step on a node's data gives a good model for it.

Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach,
NeurIPS 2020, Algorithm 1 and Section 5 (the variants FO and HF), https://arxiv.org/abs/2002.07948.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedapps.base.options import Range, option
from fedapps.base.seeding import TorchState
from fedapps.clients.local_part import EVALUATED_MODEL, PHASES, TRAINING_STEP, LocalPart, NodeRound, Prepared
from fedapps.clients.rules import spend_step
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Loss, ModelWithLoss, Phase, Update, run_plan
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.base import Batch, NodeData

from .base import Method

_Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class PerFedAvgOptions:
    """The options of Per-FedAvg."""

    inner_rate: float = option(
        0.01,
        "learning rate α of the step to a node's data, in training and before an evaluation; stale.* are the metrics "
        "without it; 0 = FedAvg",
        minimum=0,
        search=Range(0.001, 1, log=True),
    )
    gradient: str = option(
        "first-order",
        "first-order: leave out how the step at α changes with the model; hessian-free: measure it by two further "
        "gradients; it needs an inner-rate below 1 / the curvature of the loss",
        choices=["first-order", "hessian-free"],
    )


class PerFedAvg(Method):
    """FedAvg of nodes that train the model for its loss after one step of gradient descent.

    The step at α is one of plain gradient descent, so that a good α depends on the loss, not on the run's optimizer.
    """

    name = "per-fedavg"
    summary = "Per-FedAvg: FedAvg of a model for its loss after one gradient step, which nodes take before evaluations"
    citation = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning "
        "Approach, NeurIPS 2020, https://arxiv.org/abs/2002.07948"
    )
    work = "+ 1 step to evaluate"
    good_for = "uneven data; new nodes adapt fast"
    Options = PerFedAvgOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [PerFedAvgPart(self.options)]


@dataclass(frozen=True)
class PerFedAvgPart(LocalPart):
    """Take the steps of training with the gradient of f(θ − α ∇f(θ; D); D′), where f is the task's loss.

    D, D′ and, for the Hessian, D″ are different examples of the step's batch: each has one half or third of it; a part
    has at least two examples, so a batch that is too small serves more than once. Before an evaluation θ takes one step
    at α with the gradient over all training examples.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL, PHASES, TRAINING_STEP})

    options: PerFedAvgOptions = PerFedAvgOptions()

    # -- training --------------------------------------------------------------------------------------------------

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        if self.options.inner_rate == 0:
            return plan
        loss = node_round.task.loss

        def step(model: nn.Module, batch: Batch, update: Update) -> Tensor:
            return self._step(ModelWithLoss(model, loss), batch, update)

        return [replace(phase, step=step) for phase in plan]

    def _step(self, of: ModelWithLoss, batch: Batch, update: Update) -> Tensor:
        """Take the step of a batch, and return the loss after the step at α."""
        theta = {name: p for name, p in update.named.items() if p.requires_grad}
        exact = self.options.gradient == "hessian-free"
        for_step, for_gradient, *for_hessian = parts_of(batch, 3 if exact else 2)
        # Algorithm 1: θ̃ = θ − α ∇f(θ; D), then a step along (I − α ∇²f(θ; D″)) ∇f(θ̃; D′); FO leaves out the Hessian
        adapted = _moved(theta, -self.options.inner_rate, _gradients(of, theta, for_step)[1])
        loss, meta = _gradients(of, adapted, for_gradient)
        if exact and (length := _norm(meta)):
            # Section 5, HF: ∇²f(θ) v ≈ (∇f(θ + δ v) − ∇f(θ − δ v)) / (2 δ)
            parameter = next(iter(theta.values()))
            delta = torch.finfo(parameter.dtype).eps ** (1 / 3) * (1 + _norm(theta)) / length
            same_draws = TorchState()  # of dropout, or the difference would be one of masks
            up = _gradients(of, _moved(theta, delta, meta), for_hessian[0])[1]
            with same_draws:
                down = _gradients(of, _moved(theta, -delta, meta), for_hessian[0])[1]
            slope = {name: (up[name] - down[name]) / (2 * delta) for name in up}
            meta = _moved(meta, -self.options.inner_rate, slope)
            spend_step()
        update(torch.stack([(theta[name] * gradient).sum() for name, gradient in meta.items()]).sum())
        return loss

    # -- evaluation ------------------------------------------------------------------------------------------------

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        if self.options.inner_rate == 0 or node_round.data.count("train") == 0:
            return Prepared()
        epochs = node_round.epochs(model, node_round.data)
        with node_round.torch_seed("adapt"):
            return Prepared(run_plan(model, [self._descent(1, node_round)], epochs, node_round.task.loss).steps)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """As many steps at α as ``phase`` has epochs, each with the gradient over all training examples."""
        return self._descent(phase.training.epochs, node_round) if self.options.inner_rate else phase

    def unprepared_prefix(self) -> str | None:
        return STALE_METRICS_PREFIX if self.options.inner_rate else None

    def _descent(self, steps: int, node_round: NodeRound) -> Phase:
        """A phase of gradient descent, where the batches of a whole epoch make a step."""
        run_training, task = node_round.settings.training, node_round.task

        def step(model: nn.Module, _: Batch, update: Update) -> Tensor:
            batches = task.training_batches(model, node_round.data, run_training.batch_size)
            return descend(task.loss, model, batches, update, node_round.device)

        training = LocalTraining(
            steps=steps, learning_rate=self.options.inner_rate, batch_size=run_training.batch_size, optimizer="sgd"
        )
        return Phase(training, epoch=lambda _: iter([{}]), step=step)


def parts_of(batch: Batch, number: int) -> list[Batch]:
    """``number`` parts of a batch, of two or more examples each; one is there several times if the batch is small."""
    different = max(1, min(number, len(next(iter(batch.values()))) // 2))
    parts = [{name: rows[first::different] for name, rows in batch.items()} for first in range(different)]
    return [parts[index % different] for index in range(number)]


def descend(loss: Loss, model: nn.Module, batches: Iterator[Batch], update: Update, device: torch.device) -> Tensor:
    """Take one step with the mean gradient over the examples of all batches, and return their mean loss."""
    update.clear()
    total, examples = torch.zeros((), device=device), 0
    for batch in batches:
        if examples:
            spend_step()
        tensors = {name: tensor.to(device) for name, tensor in batch.items()}
        size = len(next(iter(tensors.values())))
        summed = loss(model, tensors) * size
        summed.backward()
        total, examples = total + summed.detach(), examples + size
    for parameter in update.named.values():
        if parameter.grad is not None:
            parameter.grad /= examples
    update.take()
    return total / examples


def _gradients(of: ModelWithLoss, at: _Named, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch at some parameters, and its gradients, without those of parameters that it does not use."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in at.items()}
    loss = of.with_parameters(leaves, batch)
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return loss.detach(), {name: g for name, g in zip(leaves, gradients, strict=True) if g is not None}


def _moved(at: _Named, distance: float, along: _Named) -> dict[str, Tensor]:
    return {name: t.detach() + distance * along[name] if name in along else t.detach() for name, t in at.items()}


def _norm(named: _Named) -> float:
    return float(torch.stack([tensor.detach().norm() for tensor in named.values()]).norm()) if named else 0.0
