"""Methods of continual learning: nodes that keep something of their earlier stages, under FedAvg, FedProx or alone."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from torch import nn

from fedapps.base.options import option, under_prefix
from fedapps.clients.arrays import Arrays, get_arrays, kept_arrays, memory_of
from fedapps.clients.fisher import Estimator, takes_batches
from fedapps.clients.local_part import EARLIER_STAGES, LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.config.run_config import RunConfig
from fedapps.tasks.base import Task, missing
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role
from .baselines import EVERYTHING
from .fedprox import Proximal

#: Several stages: each held at its own solution; their precisions summed and held at the newest one; the newest alone.
Anchors = Literal["separate", "online", "newest"]
_PARTS = ("past.precision.", "past.linear.", "now.precision.", "now.anchor.")


@dataclass(frozen=True)
class FederationOptions:
    """How the nodes of a method of continual learning come together."""

    mu: float = option(0.0, "weight µ of FedProx's proximal term; 0 = FedAvg", minimum=0)
    local: bool = option(False, "train every node alone, without a federation")


class ContinualMethod(Method):
    """A method with :class:`FederationOptions`, for nodes that keep something of their earlier stages."""

    needs_stages = True

    @property
    def role(self) -> Role:
        return "alone" if self.options.local else "federated"

    def private(self, task: Task) -> PrivateParameters:
        return EVERYTHING if self.options.local else PrivateParameters()

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if self.options.local and self.options.mu:
            yield {"methods"}, f"{self.name}: mu = {self.options.mu:g} must be 0 with local = true: nothing is shared"

    def proximal(self) -> list[LocalPart]:
        """The proximal term, where there is one."""
        return [Proximal(self.options.mu)] if self.options.mu else []


def estimator_option() -> Any:
    """The option ``estimator`` of the methods that use the Fisher information."""
    return option(
        "per-sample",
        "Fisher information from squared gradients of examples, batches (-scaled: times their size), of the likelihood "
        "or the loss as it is (loss-); or true: with labels from the model",
        choices=list(get_args(Estimator)),
    )


def estimator_conflicts(method: Method, task: Task) -> Iterator[Conflict]:
    """What is wrong with the option ``estimator`` of a method for a task."""
    estimator, why = method.options.estimator, ""
    if estimator == "true" and type(task).drawn_labels is Task.drawn_labels:
        why = f"task {task.name!r} cannot draw labels from a model; choose another estimator"
    elif not takes_batches(estimator) and (gap := missing(task, "examples")):
        why = f"task {task.name!r} has no single examples, because {gap}; choose per-batch"
    if why:
        yield {"methods"}, f"{method.name}: estimator = {estimator}: {why}"


@dataclass(frozen=True)
class EwcState:
    """Two tensors per parameter for all finished stages together, and two for the newest solution of the current one.

    ``precision`` (P ≥ 0) and ``linear`` (L), float64, make the penalty ½ θᵀPθ − Lᵀθ of the finished stages;
    ``now_precision`` (F ≥ 0) and ``now_anchor`` (θ), in the parameters' dtype, are what the current one would add.
    """

    precision: Arrays = field(default_factory=dict)
    linear: Arrays = field(default_factory=dict)
    now_precision: Arrays = field(default_factory=dict)
    now_anchor: Arrays = field(default_factory=dict)

    @classmethod
    def read(cls, memory: Arrays) -> Self:
        """The inverse of :meth:`arrays`; empty if there are none."""
        return cls(*(under_prefix(part, memory) for part in _PARTS))

    def arrays(self) -> Arrays:
        """Return the arrays to keep, by names with a prefix."""
        parts = (self.precision, self.linear, self.now_precision, self.now_anchor)
        return {
            prefix + name: array for prefix, part in zip(_PARTS, parts, strict=True) for name, array in part.items()
        }

    @property
    def size(self) -> int:
        """The number of values in all arrays."""
        return sum(array.size for array in self.arrays().values())

    def with_solution(self, anchor: Arrays, precision: Arrays) -> Self:
        """Return the state with a newer solution of the current stage."""
        return replace(self, now_precision=precision, now_anchor=anchor)

    def next_stage(self, anchors: Anchors) -> Self:
        """Return the state after the current stage: add its newest solution to the finished stages."""
        precision, linear = {}, {}
        for name, now in self.now_precision.items():
            added = now.astype(np.float64)
            anchor = self.now_anchor[name].astype(np.float64)
            before = self.precision.get(name, np.zeros(()))
            precision[name] = added if anchors == "newest" else before + added
            if anchors == "separate":
                linear[name] = self.linear.get(name, np.zeros(())) + added * anchor
            else:
                linear[name] = precision[name] * anchor
        return type(self)(precision, linear) if precision else self

    def prior(self, weight: float) -> QuadraticPrior | None:
        """``weight`` (λ ≥ 0) times the penalty of the finished stages; ``None`` before the first has ended."""
        if weight == 0 or not self.precision:
            return None
        # EWC, Equation 3: ½ λ Σ F (θ − θ_s)² over the stages s is ½ θᵀPθ − Lᵀθ with P = λ Σ F, L = λ Σ F θ_s
        precision = {name: torch.as_tensor(weight * array) for name, array in self.precision.items()}
        return QuadraticPrior(precision, {n: torch.as_tensor(weight * array) for n, array in self.linear.items()})


@dataclass(frozen=True)
class EarlierStages(LocalPart):
    """A quadratic prior from the node's finished stages (:class:`EwcState`).

    Parameters
    ----------
    weight : float
        λ ≥ 0, on the scale of the training loss. With 0 nothing is remembered.
    anchors : Anchors
        How several finished stages are combined.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES})

    weight: float = 0.0
    anchors: Anchors = "separate"

    @abstractmethod
    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The precision of the solution that the round ended with, by parameter."""

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return EwcState.read(memory_of(node_round.kept)).prior(self.weight)

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        if self.weight == 0:
            return {}
        trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        solution, precision = get_arrays(model, trained), self.precision(model, node_round)
        before = EwcState.read(memory_of(node_round.kept))
        return before.with_solution(solution, {name: precision[name] for name in trained}).arrays()

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        finished = EwcState.read(memory_of(kept)).next_stage(self.anchors)
        return kept_arrays(carried, finished.arrays())

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return EwcState.read(memory).size

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return version_bytes * (stages - 1)
