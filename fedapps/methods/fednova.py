"""FedNova: the mean of updates that are divided by the length of their local training.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
Section 4.1, https://arxiv.org/abs/2007.07481.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.config.run_config import RunConfig
from fedapps.strategies import FedNova as FedNovaStrategy
from fedapps.strategies.wire import FEDNOVA_NORM
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, Scalar, required
from .fedprox import Proximal


@dataclass(frozen=True)
class FedNovaOptions:
    """The options of FedNova."""

    mu: float = option(
        0.0,
        "weight µ of a proximal term on the nodes, without momentum; 0 = none",
        minimum=0,
        search=Choices((0.0, 0.001, 0.01, 0.1)),
    )


class FedNova(Method):
    """Nodes with many local steps do not pull the shared model further than others.

    In the paper nodes count by their examples (``weighting = "num-examples"``).
    """

    name = "fednova"
    summary = "FedNova: FedAvg of updates that are divided by the number of local steps"
    citation = (
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS "
        "2020, https://arxiv.org/abs/2007.07481"
    )
    good_for = "nodes take different numbers of steps"
    Options = FedNovaOptions
    Strategy = FedNovaStrategy

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        why = "updates are divided by the length of steps of SGD at one learning rate"
        plain: dict[str, Scalar] = {"optimizer": "sgd", "linear_decay": False, "plateau_patience": 0}
        if self.options.mu:
            plain["momentum"] = 0.0
        yield from required(run, self.name, why, **plain)
        rate = run.training.learning_rate
        if self.options.mu * rate >= 1:
            yield (
                {"learning_rate", "methods"},
                f"fednova.mu = {self.options.mu:g}: times learning-rate = {rate:g} must be below 1",
            )

    def privacy_conflict(self, dp: str) -> str:
        if dp == "local":
            return "nodes send the number of their steps, which depends on how many examples they have"
        return super().privacy_conflict(dp)

    def local_parts(self) -> Sequence[LocalPart]:
        return [Proximal(self.options.mu), FedNovaPart(self.options)]


@dataclass(frozen=True)
class FedNovaPart(LocalPart):
    """Report ‖a_i‖₁: the update of τ local steps is −η times the sum of their gradients, weighted by a_i."""

    options: FedNovaOptions = FedNovaOptions()

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        training = node_round.settings.training
        return {FEDNOVA_NORM: length(node_round.steps, training.momentum, training.learning_rate * self.options.mu)}


def length(steps: int, momentum: float = 0.0, decay: float = 0.0) -> float:
    """‖a‖₁ of local SGD.

    Parameters
    ----------
    steps : int
        τ ≥ 0.
    momentum : float
        ρ in [0, 1): (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ).
    decay : float
        η µ in [0, 1) of a proximal term, without momentum: (1 − (1 − η µ)^τ) / (η µ).
    """
    # Section 4.1: ‖a‖₁ of SGD with momentum, with a proximal term, and of plain SGD
    if momentum:
        norm = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    else:
        norm = (1 - (1 - decay) ** steps) / decay if decay else float(steps)
    return max(norm, min(steps, 1.0))  # the first step counts as 1, also after rounding
