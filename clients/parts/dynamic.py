"""FedDyn on a node: a proximal term, and a linear term that adapts it to the node's own optimum.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Section 2, Equation 1 and Algorithm 1,
https://arxiv.org/abs/2111.04263.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from fedapps.clients.arrays import Arrays, get_arrays, kept_arrays, memory_of
from fedapps.clients.counted import Counted, counted_round
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import option

_GRADIENT = Counted("feddyn.gradient")


@dataclass(frozen=True)
class DynamicRegularisation(LocalPart):
    """Add ½ α ‖θ − θ_received‖² − g_iᵀθ over the shared parameters to the loss.

    After training, α (θ − θ_received) is subtracted from g_i, which starts at 0 and stays on the node. Where training
    ends at a minimum, g_i is the gradient of the loss of the node.

    Parameters
    ----------
    dynamic : float
        α ≥ 0. With 0 this is FedAvg.
    counted : int or None
        The round of the node's last reply that the server has counted; if g_i is of a later one, the node goes back to
        what it was before. ``None`` if the message does not say so.
    """

    dynamic: float = option(0.0, "the weight α", minimum=0)
    counted: int | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return replace(super().read(config, content), counted=counted_round(content))

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.dynamic == 0:
            return None
        around = QuadraticPrior.around({name: p.detach().clone() for name, p in shared.items()}, self.dynamic)
        own = {name: torch.from_numpy(array) for name, array in self._own(node_round).items() if name in shared}
        return around + QuadraticPrior({name: torch.zeros_like(tensor) for name, tensor in own.items()}, own)

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        if self.dynamic == 0:
            return {}
        own = self._own(node_round)
        names = [name for name, _ in model.named_parameters() if name in node_round.received]
        updated = {}
        for name, trained in get_arrays(model, names).items():
            moved = trained.astype(np.float64) - node_round.received[name]
            before = own.get(name, np.zeros_like(trained)).astype(np.float64)
            updated[name] = np.asarray(before - self.dynamic * moved, dtype=trained.dtype)
        return _GRADIENT.after(node_round.settings.server_round, own, updated)

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        # The server's mean still contains the linear term of the last stage.
        return kept_arrays(carried, _GRADIENT.of(memory_of(kept)))

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return 2 * sum(parameter.numel() for parameter in shared.values()) if self.dynamic else 0

    def _own(self, node_round: NodeRound) -> Arrays:
        """g_i as the last counted round left it; empty before the first."""
        return _GRADIENT.start(memory_of(node_round.kept), self.counted)
