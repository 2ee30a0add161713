"""FedProx on a node: hold the shared parameters near the values that were received.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, Section 3.2, https://arxiv.org/abs/1812.06127.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class Proximal(LocalPart):
    """Add ½ µ ‖θ − θ_received‖² over the shared parameters to the loss.

    Parameters
    ----------
    proximal : float
        µ ≥ 0. With 0 this is FedAvg.
    """

    proximal: float = option(0.0, "the weight µ", minimum=0)

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.proximal == 0:
            return None
        return QuadraticPrior.around({name: p.detach().clone() for name, p in shared.items()}, self.proximal)

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return sum(parameter.numel() for parameter in shared.values()) if self.proximal else 0
