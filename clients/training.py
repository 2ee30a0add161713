"""Local training as a plan: a list of phases, each with its parameters to train, its length and its learning rate."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import unwrap
from itertools import count, islice
from math import inf
from typing import Any

import numpy as np
import torch
from fedapps.tasks.base import Batch, NodeData, Task
from torch import Tensor, nn
from torch.func import functional_call

from fedapps.base.errors import DivergedError

from .arrays import Arrays, matches
from .penalties import QuadraticPrior
from .rules import check_length, spend_step
from .settings import LocalTraining

#: The loss of a model on a batch: a scalar.
Loss = Callable[[nn.Module, Batch], Tensor]
#: A step of a part: changes the model in place by a batch and returns the loss to report, a scalar.
Step = Callable[[nn.Module, Batch, "Update"], Tensor]
#: Examples at once where no gradient step depends on it.
EXAMPLES_AT_ONCE = 256
_PLATEAU = "plateau"


@dataclass
class Plateau:
    """A learning rate that falls when the validation loss stops falling, also from round to round.

    The schedule of Guerdan & Gunes (Decentralized Robot Learning for Personalization and Privacy, Appendix A.4): halved
    after every five consecutive epochs without a lower validation loss, down to a minimum, without early stopping. A
    node's round is often one epoch long, so the count continues from round to round. The state: the rate of the next
    epoch, the lowest validation loss so far, and the epochs since it was last lowered.

    Parameters
    ----------
    patience : int
        ≥ 1; epochs in a row without a lower loss after which the rate is multiplied by ``factor``.
    factor : float
        In (0, 1).
    minimum : float
        The rate never falls below it.
    learning_rate : float
        The rate to start at.
    """

    patience: int
    factor: float
    minimum: float
    learning_rate: float
    best: float = inf
    stale: int = 0

    @classmethod
    def of(cls, training: LocalTraining, memory: Arrays) -> "Plateau | None":
        """The plateau of a round, continued from the memory; ``None`` if the settings have none."""
        if training.plateau_patience == 0:
            return None
        plateau = cls(
            training.plateau_patience, training.plateau_factor, training.min_learning_rate, training.learning_rate
        )
        plateau.resume(memory)
        return plateau

    def epoch_ended(self, validation_loss: float) -> None:
        """Update the learning rate with the loss after an epoch. A loss that is not a number is no improvement."""
        if validation_loss < self.best:
            self.best, self.stale = validation_loss, 0
            return
        self.stale += 1
        if self.stale >= self.patience:
            self.learning_rate, self.stale = max(self.learning_rate * self.factor, self.minimum), 0

    def arrays(self) -> Arrays:
        """Return the state for later rounds."""
        return {_PLATEAU: np.array([self.learning_rate, self.best, self.stale])}

    def resume(self, memory: Arrays) -> None:
        """Continue from the result of :meth:`arrays` in the memory, if it is there."""
        if _PLATEAU in memory:
            rate, best, stale = memory[_PLATEAU].tolist()
            self.learning_rate, self.best, self.stale = rate, best, int(stale)


def kept_rate(memory: Arrays, learning_rate: float) -> float:
    """The rate of the plateau in the memory; ``learning_rate`` if there is none."""
    return float(memory[_PLATEAU][0]) if _PLATEAU in memory else learning_rate


@dataclass(frozen=True)
class Phase:
    """A phase of local training. Each phase has a new optimizer.

    Parameters
    ----------
    training : LocalTraining
        The optimizer, its learning rate, and how long it trains. A plateau sets the learning rate in its place.
    trainable : sequence of str
        Glob patterns of the parameters to train. The others are frozen.
    rates : mapping of names to tensors, or None
        Factors for the optimizer's steps, of the parameter's shape or without dimensions. Under Adam this is not the
        same as a factor for the gradient. Parameters without an entry take the full step.
    prior : QuadraticPrior, optional
        Its gradient is added to that of the loss.
    plateau : Plateau, optional
        Sets the learning rate after every epoch, from ``validation_loss()``.
    validation_loss : callable, optional
    epoch : callable, optional
        ``epoch(batch_size)`` yields the batches of one epoch, in place of the plan's.
    step : callable, optional
        ``step(model, batch, update)``, in place of ``update(loss_of(model, batch))``.

    Raises
    ------
    ValueError
        ``clip_norm`` is negative, or ``linear_decay`` comes with a plateau.
    """

    training: LocalTraining
    trainable: Sequence[str] = ("*",)
    rates: Mapping[str, Tensor] | None = None
    prior: QuadraticPrior | None = None
    plateau: Plateau | None = None
    validation_loss: Callable[[], float] | None = None
    epoch: Callable[[int], Iterator[Batch]] | None = None
    step: Step | None = None

    @property
    def rate(self) -> float:
        """The learning rate at the beginning of the phase."""
        return self.plateau.learning_rate if self.plateau else self.training.learning_rate

    def __post_init__(self) -> None:
        if not self.training.clip_norm >= 0:
            raise ValueError(f"clip_norm = {self.training.clip_norm}: must be above 0, or 0 for no clipping")
        if self.training.linear_decay and self.plateau is not None:
            raise ValueError("linear_decay = True: must be false with a plateau, which sets the learning rate itself")


@dataclass(frozen=True)
class Update:
    """The optimizer of a phase, which :attr:`Phase.step` calls as often as it needs.

    Parameters
    ----------
    phase : Phase
    named : mapping of names to parameters
        Those that the phase trains.
    optimizer : Optimizer
    take : callable
        Takes the optimizer's step, scaled by the rates of the phase.
    """

    phase: Phase
    named: Mapping[str, nn.Parameter]
    optimizer: torch.optim.Optimizer
    take: Callable[[], object]

    @property
    def rate(self) -> float:
        """The learning rate of this step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def clear(self) -> None:
        """Forget the gradients, as ``optimizer.zero_grad``, which also speaks to torch's profiler."""
        for parameter in self.named.values():
            parameter.grad = None

    def __call__(self, loss: Tensor) -> Tensor:
        """Take the optimizer's step for a loss, with prior and clipping of the phase, and return the loss."""
        self.clear()
        loss.backward()
        if self.phase.prior is not None:
            self.phase.prior.add_gradient(self.named)
        if self.phase.training.clip_norm:
            nn.utils.clip_grad_norm_(self.named.values(), self.phase.training.clip_norm)
        self.take()
        return loss


@dataclass(frozen=True)
class Trained:
    """The result of a plan: the optimizer steps, and the mean loss over the last epoch (0 without a step)."""

    steps: int
    loss: float

    @classmethod
    def of(cls, phase: Phase, steps: int, loss: float) -> "Trained":
        """The result of a phase. Raises :class:`DivergedError` if the loss is not finite."""
        if not math.isfinite(loss):
            raise DivergedError(
                f"the training loss is {loss} after {steps} steps at learning rate {phase.training.learning_rate}: "
                "lower the learning rate or check the data for outliers"
            )
        return cls(steps, loss)

    def then(self, phase: "Trained") -> "Trained":
        """The result with a further phase."""
        return replace(phase, steps=self.steps + phase.steps) if phase.steps else self


def run_plan(
    model: nn.Module, plan: Sequence[Phase], epoch: Callable[[int], Iterator[Batch]], loss_of: Loss
) -> Trained:
    """Train a model in place, phase by phase. All randomness comes from torch's global generator.

    Parameters
    ----------
    model : nn.Module
    plan : sequence of Phase
    epoch : callable
        ``epoch(batch_size)`` yields the batches of one epoch.
    loss_of : callable
        ``loss_of(model, batch)`` is the loss to minimise, a scalar tensor.

    Returns
    -------
    Trained

    Raises
    ------
    ValueError
        A phase matches no parameter, has an unknown optimizer, or has steps but no batches.
    DivergedError
        The mean loss over the last epoch of a phase is not finite.
    """
    done = Trained(0, 0.0)
    model.train()
    for phase in plan:
        done = done.then(run_phase(model, phase, phase.epoch or epoch, loss_of))
    return done


def run_phase(model: nn.Module, phase: Phase, epoch: Callable[[int], Iterator[Batch]], loss_of: Loss) -> Trained:
    """Train a model in place for one phase. The parameters are those of :func:`run_plan`."""
    named = trained_parameters(model, phase)
    frozen = (
        []
        if "*" in phase.trainable
        else [p for name, p in model.named_parameters() if name not in named and p.requires_grad]
    )
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimizer = new_optimizer(phase, named)
    update = Update(phase, named, optimizer, _scaled_step(optimizer, named, phase.rates))
    device = next(iter(named.values())).device
    on_cpu = device.type == "cpu"
    total, count, steps = torch.zeros((), device=device), 0, 0
    if phase.training.linear_decay:
        epoch, length = counted(phase, epoch)
    try:
        for first_of_epoch, batch in stream(phase, epoch):
            if first_of_epoch:
                if steps:
                    _end_epoch(phase, optimizer)
                total, count = torch.zeros((), device=device), 0
            if phase.training.linear_decay:
                set_rate(optimizer, phase.training.learning_rate * (length - steps) / length)
            tensors = batch if on_cpu else {name: tensor.to(device) for name, tensor in batch.items()}
            loss = phase.step(model, tensors, update) if phase.step else update(loss_of(model, tensors))
            total, count, steps = total + loss.detach(), count + 1, steps + 1
        if steps:
            _end_epoch(phase, optimizer)
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
    return Trained.of(phase, steps, float(total) / max(count, 1))


def trained_parameters(model: nn.Module, phase: Phase) -> dict[str, nn.Parameter]:
    """The parameters that a phase trains, by name. Raises ``ValueError`` if there are none, or if rates do not fit."""
    every = "*" in phase.trainable
    named = {name: p for name, p in model.named_parameters() if every or matches(name, phase.trainable)}
    if not named:
        known = ", ".join(name for name, _ in model.named_parameters())
        raise ValueError(f"trainable = {list(phase.trainable)}: matches no parameter; the model has {known}")
    for name, rate in (phase.rates or {}).items():
        if name in named and rate.shape not in ((), named[name].shape):
            shape = list(named[name].shape)
            raise ValueError(f"rates: {name!r} is {list(rate.shape)}: must be one number or {shape}, as the parameter")
    return named


def end_epoch(phase: Phase) -> None:
    """Set the plateau's learning rate from the validation loss, if the phase has a plateau."""
    if phase.plateau is not None and phase.validation_loss is not None:
        phase.plateau.epoch_ended(phase.validation_loss())


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def counted(phase: Phase, epoch: Callable[[int], Iterator[Batch]]) -> tuple[Callable[[int], Iterator[Batch]], int]:
    """The same epochs, and the number of steps in the phase, which is known from the first epoch, held in memory."""
    if phase.training.steps > 0:
        return epoch, phase.training.steps
    held = [list(epoch(phase.training.batch_size))]
    return lambda batch_size: iter(held.pop()) if held else epoch(batch_size), phase.training.epochs * len(held[0])


def stream(phase: Phase, epoch: Callable[[int], Iterator[Batch]]) -> Iterator[tuple[bool, Batch]]:
    """Batches of the phase, each with whether it is the first of its epoch.

    Raises
    ------
    LimitError
        The node does not take as many steps (:mod:`fedapps.clients.rules`).
    """
    steps, epochs = phase.training.steps, phase.training.epochs
    if steps > 0:
        check_length("steps", steps)
    else:
        check_length("epochs", epochs)

    def batches() -> Iterator[tuple[bool, Batch]]:
        for _ in count() if steps > 0 else range(epochs):
            index = -1
            for index, batch in enumerate(epoch(phase.training.batch_size)):
                spend_step()
                yield index == 0, batch
            if index < 0 and steps > 0:
                raise ValueError(f"steps = {steps}, but there are no training batches to take them on")

    return islice(batches(), steps if steps > 0 else None)


def new_optimizer(phase: Phase, named: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a phase, at its first learning rate. Raises ``ValueError`` for an unknown name."""
    undecayed = phase.prior.undecayed if phase.prior is not None else frozenset()
    parameters: list[Any] = [tensor for name, tensor in named.items() if name not in undecayed]
    if held := [tensor for name, tensor in named.items() if name in undecayed]:
        parameters = [{"params": parameters}, {"params": held, "weight_decay": 0.0}]
    name = phase.training.optimizer
    common = {"lr": phase.rate, "weight_decay": phase.training.weight_decay}
    if name == "adam":
        return _bare(torch.optim.Adam)(parameters, **common, fused=True)
    if name == "adamw":
        return _bare(torch.optim.AdamW)(parameters, **common, fused=True)
    if name == "rmsprop":
        return _bare(torch.optim.RMSprop)(parameters, **common)
    if name == "sgd":
        on_gpu = next(iter(named.values())).is_cuda  # one kernel for all parameters
        momentum = phase.training.momentum
        return _bare(torch.optim.SGD)(parameters, **common, momentum=momentum, fused=on_gpu, foreach=False)
    raise ValueError(f"optimizer = {name!r}: must be 'adam', 'adamw', 'rmsprop' or 'sgd'")


@cache
def _bare(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """A class of optimizers without what torch wraps around its methods for its compiler and its profiler.

    The wrappers take longer than the step of a small model, and the compiler takes seconds to import.
    """
    step = torch.no_grad()(unwrap(kind.step))
    step.hooked = True  # says that the profiler has wrapped it
    plain = {name: unwrap(getattr(kind, name)) for name in ("add_param_group", "zero_grad")}
    return type(kind.__name__, (kind,), {**plain, "step": step})


def _end_epoch(phase: Phase, optimizer: torch.optim.Optimizer) -> None:
    end_epoch(phase)
    if phase.plateau is not None:
        set_rate(optimizer, phase.plateau.learning_rate)


def _scaled_step(
    optimizer: torch.optim.Optimizer, named: Mapping[str, nn.Parameter], rates: Mapping[str, Tensor] | None
) -> Callable[[], object]:
    """The optimizer's step with each parameter's change scaled by its rate; a rate of 1 changes nothing, exactly."""
    scaled = [
        (parameter, rates[name].to(parameter))
        for name, parameter in named.items()
        if rates is not None and name in rates and not bool((rates[name] == 1).all())
    ]

    if not scaled:
        return optimizer.step

    def step() -> None:
        with torch.no_grad():
            before = [parameter.clone() for parameter, _ in scaled]
            optimizer.step()
            for (parameter, rate), old in zip(scaled, before, strict=True):
                moved = old + rate * (parameter - old)
                parameter.copy_(torch.where(rate == 1, parameter, moved))

    return step


@torch.no_grad()
def mean_loss(task: Task, model: nn.Module, data: NodeData, split: str, device: torch.device) -> float:
    """The task's mean loss over the examples of a split, at least one. The model is in training mode afterwards."""
    model.eval()
    total = 0.0
    for batch in task.examples(data, split, EXAMPLES_AT_ONCE):
        tensors = {name: tensor.to(device) for name, tensor in batch.items()}
        total += float(task.loss(model, tensors)) * len(next(iter(tensors.values())))
    model.train()
    return total / data.count(split)


class ModelWithLoss(nn.Module):
    """Calls a loss with a model whose parameters are replaced.

    Parameters
    ----------
    model : nn.Module
        Parameters without a replacement are its own.
    loss_of : callable
        ``loss_of(model, batch)`` is a scalar tensor.
    """

    def __init__(self, model: nn.Module, loss_of: Loss) -> None:
        super().__init__()
        self.model = model
        self.loss_of = loss_of

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss on a batch."""
        return self.loss_of(self.model, batch)

    def with_parameters(self, named: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss on a batch with other parameters, given by their names in the model."""
        inner = {f"model.{name}": tensor for name, tensor in named.items()}
        return torch.as_tensor(functional_call(self, inner, (batch,)))
