"""What a node remembers of its own earlier stages, as a prior on its parameters: EWC and L2 transfer.

Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017, Equation 3 (EWC),
https://arxiv.org/abs/1612.00796. Schwarz et al., Progress & Compress, ICML 2018, Section 3.2 (Online-EWC),
https://arxiv.org/abs/1805.06370. Li & Hoiem, Learning without Forgetting, 2017, Section 4 (L2 transfer). All of it
stays on the node. ``FisherExchange`` with ``own_past`` alone trains the same, but sends these arrays.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np
import torch
from fedapps.clients.arrays import Arrays, get_arrays, kept_arrays, memory_of
from fedapps.clients.fisher import Estimator, fisher_of_node
from fedapps.clients.local_part import EARLIER_STAGES, LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from torch import nn

from fedapps.base.options import option

#: Several stages: each held at its own solution; their precisions summed and held at the newest one; the newest alone.
Anchors = Literal["separate", "online", "newest"]
_PARTS = ("past.precision.", "past.linear.", "now.precision.", "now.anchor.")


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
    def read(cls, memory: Arrays) -> EwcState:
        """The inverse of :meth:`arrays`; empty if there are none."""
        return cls(
            *(
                {name.removeprefix(part): array for name, array in memory.items() if name.startswith(part)}
                for part in _PARTS
            )
        )

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

    def found(self, anchor: Arrays, precision: Arrays) -> EwcState:
        """Return the state with a newer solution of the current stage."""
        return EwcState(self.precision, self.linear, precision, anchor)

    def next_stage(self, anchors: Anchors) -> EwcState:
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
        return EwcState(precision, linear) if precision else self

    def prior(self, weight: float) -> QuadraticPrior | None:
        """``weight`` (λ ≥ 0) times the penalty of the finished stages; ``None`` before the first has ended."""
        if weight == 0 or not self.precision:
            return None
        precision = {name: torch.from_numpy(weight * array) for name, array in self.precision.items()}
        return QuadraticPrior(precision, {n: torch.from_numpy(weight * array) for n, array in self.linear.items()})


@dataclass(frozen=True)
class _EarlierStages(LocalPart):
    """A quadratic prior from the node's finished stages (:class:`~fedapps.clients.parts.earlier_stages.EwcState`)."""

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES})

    @property
    @abstractmethod
    def weight(self) -> float:
        """λ ≥ 0, the weight of the prior; with 0 nothing is remembered."""

    @property
    @abstractmethod
    def anchors(self) -> Anchors:
        """How several finished stages are combined."""

    @abstractmethod
    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The precision of the solution that the round ended with, by parameter."""

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` for a negative weight."""
        if not self.weight >= 0:
            raise ValueError(f"the weight λ of {type(self).__name__} is {self.weight}: must be at least 0")

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        return EwcState.read(memory_of(node_round.kept)).prior(self.weight)

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        if self.weight == 0:
            return {}
        solution = get_arrays(model, [name for name, _ in model.named_parameters()])
        before = EwcState.read(memory_of(node_round.kept))
        return before.found(solution, self.precision(model, node_round)).arrays()

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        finished = EwcState.read(memory_of(kept)).next_stage(self.anchors)
        return kept_arrays(carried, finished.arrays())

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return EwcState.read(memory).size

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return version_bytes * (stages - 1)


@dataclass(frozen=True)
class Ewc(_EarlierStages):
    """Elastic weight consolidation: ½ λ Σ_s F_s (θ − θ_s)² over the node's earlier stages s.

    Parameters
    ----------
    ewc : float
        λ ≥ 0, on the scale of the training loss. With 0 this is plain training.
    ewc_anchors : "separate" or "online"
        Each stage at its solution, or all precisions summed at the newest solution (Online-EWC).
    fisher_estimator : Estimator
        How F is estimated (:func:`~fedapps.clients.fisher.diagonal_fisher`).
    """

    ewc: float = option(0.0, "the weight λ", minimum=0)
    ewc_anchors: Anchors = option("separate", "how stages are combined", choices=("separate", "online"))
    fisher_estimator: Estimator = option("per-sample", "how F is estimated", choices=get_args(Estimator))

    @property
    def weight(self) -> float:
        return self.ewc

    @property
    def anchors(self) -> Anchors:
        return self.ewc_anchors

    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return fisher_of_node(model, node_round, self.fisher_estimator)


@dataclass(frozen=True)
class L2Transfer(_EarlierStages):
    """L2 transfer: ½ λ ‖θ − θ_{t−1}‖², which holds the parameters near the solution of the last stage.

    Parameters
    ----------
    l2_transfer : float
        λ ≥ 0. With 0 this is plain training.
    """

    l2_transfer: float = option(0.0, "the weight λ", minimum=0)

    @property
    def weight(self) -> float:
        return self.l2_transfer

    @property
    def anchors(self) -> Anchors:
        return "newest"

    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {name: np.ones(p.shape, p.detach().cpu().numpy().dtype) for name, p in model.named_parameters()}


@dataclass(frozen=True)
class FreshStages(LocalPart):
    """Single-task learning: every stage starts from the initial model."""

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES})

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        return kept_arrays({}, memory_of(carried))

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        return stages * sum(parameter.numel() for parameter in model.parameters())
