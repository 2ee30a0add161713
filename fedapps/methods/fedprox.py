"""FedProx: FedAvg with a proximal term on the nodes.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Section 3.2, https://arxiv.org/abs/1812.06127.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior

from .base import Method


@dataclass(frozen=True)
class FedProxOptions:
    """The options of FedProx."""

    mu: float = option(
        0.001,
        "weight µ of the proximal term; 0 = FedAvg; the authors tune from 0.001 to 1",
        minimum=0,
        search=Choices((0.0, 0.001, 0.01, 0.1, 1.0)),
    )


class FedProx(Method):
    """The nodes are held near the shared model with weight µ."""

    name = "fedprox"
    summary = "FedProx: FedAvg with a proximal term that holds the nodes near the shared model"
    citation = (
        "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127"
    )
    good_for = "uneven data, long local training"
    Options = FedProxOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [Proximal(self.options.mu)]


@dataclass(frozen=True)
class Proximal(LocalPart):
    """Add ½ µ ‖θ − θ_received‖² over the shared parameters to the loss.

    Parameters
    ----------
    mu : float
        µ ≥ 0. With 0 this is FedAvg.
    """

    mu: float = 0.0

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.mu == 0:
            return None
        # Equation 2: h(θ; θ_received) = f(θ) + ½ µ ‖θ − θ_received‖²
        return QuadraticPrior.around({name: p.detach().clone() for name, p in shared.items()}, self.mu)

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return sum(parameter.numel() for parameter in shared.values()) if self.mu else 0
