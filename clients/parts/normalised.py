"""FedNova on a node: report how much the local steps add up to.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
Section 4.1, https://arxiv.org/abs/2007.07481.
"""

from dataclasses import dataclass

from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.strategies.wire import FEDNOVA_NORM
from fedapps.tasks.base import Metrics
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class NormalisedUpdate(LocalPart):
    """Report ‖a_i‖₁: the update of τ local steps is −η times the sum of their gradients, weighted by a_i.

    Parameters
    ----------
    proximal : float
        The weight µ of a proximal term, which :class:`~fedapps.clients.parts.proximal.Proximal` adds.
    """

    proximal: float = option(0.0, "the weight µ", minimum=0)

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        training = node_round.settings.training
        return {FEDNOVA_NORM: length(node_round.steps, training.momentum, training.learning_rate * self.proximal)}


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
    if momentum:
        return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    return (1 - (1 - decay) ** steps) / decay if decay else float(steps)
