"""FedDyn: a regularisation on the nodes that makes their optima agree with the shared one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Section 2, Equation 1 and Algorithm 1,
https://arxiv.org/abs/2111.04263.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.arrays import Arrays, Counted, counted_round, get_arrays, kept_arrays, memory_of
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy
from fedapps.strategies import FedDyn as FedDynStrategy
from fedapps.tasks.base import Task

from .base import Conflict, Method, StrategyParts, required

_GRADIENT = Counted("feddyn.gradient")


@dataclass(frozen=True)
class FedDynOptions:
    """The options of FedDyn."""

    alpha: float = option(
        0.01,
        "weight α of the regularisation; the default is that of the authors' examples; 0 = FedAvg, unlike small values",
        minimum=0,
        search=Choices((0.0, 0.001, 0.01, 0.1)),
    )


class FedDyn(Method):
    """Each node keeps a linear term with which its regularised optimum becomes that of the federation.

    With a small α above 0, a round adds the mean updates of all earlier rounds, so that FedAvg is no limit of α → 0.
    """

    name = "feddyn"
    summary = (
        "FedDyn: nodes keep a linear term and are held near the shared model; the server corrects the mean by all terms"
    )
    citation = (
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263"
    )
    keeps = "linear term"
    good_for = "uneven data, all nodes in few rounds"
    Options = FedDynOptions
    Strategy = FedDynStrategy

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(self.Strategy, alpha=self.options.alpha)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        why = "the server corrects the plain mean of the trained models"
        yield from required(run, self.name, why, weighting="uniform", server_optimizer="sgd", server_learning_rate=1.0)

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedDynPart(self.options)]


@dataclass(frozen=True)
class FedDynPart(LocalPart):
    """Add ½ α ‖θ − θ_received‖² − g_iᵀθ over the shared parameters to the loss.

    After training, α (θ − θ_received) is subtracted from g_i, which starts at 0 and stays on the node. Where training
    ends at a minimum, g_i is the gradient of the loss of the node.

    Parameters
    ----------
    counted : int or None
        The round of the node's last reply that the server has counted; if g_i is of a later one, the node goes back to
        what it was before. ``None`` if the message does not say so.
    """

    options: FedDynOptions = FedDynOptions()

    counted: int | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        return replace(self, counted=counted_round(content))

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.options.alpha == 0:
            return None
        # Equation 1: ½ α ‖θ − θ_received‖² − g_iᵀθ beside the loss
        around = QuadraticPrior.around({name: p.detach().clone() for name, p in shared.items()}, self.options.alpha)
        own = {name: torch.from_numpy(array) for name, array in self._own(node_round).items() if name in shared}
        return around + QuadraticPrior({name: torch.zeros_like(tensor) for name, tensor in own.items()}, own)

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        if self.options.alpha == 0:
            return {}
        own = self._own(node_round)
        names = [name for name, _ in model.named_parameters() if name in node_round.received]
        updated = {}
        for name, trained in get_arrays(model, names).items():
            # Algorithm 1: g_i ← g_i − α (θ − θ_received)
            moved = trained.astype(np.float64) - node_round.received[name]
            before = own.get(name, np.zeros_like(trained)).astype(np.float64)
            updated[name] = np.asarray(before - self.options.alpha * moved, dtype=trained.dtype)
        return _GRADIENT.after(node_round.settings.server_round, own, updated)

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        # The server's mean still contains the linear term of the last stage.
        return kept_arrays(carried, _GRADIENT.of(memory_of(kept)))

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return 2 * sum(parameter.numel() for parameter in shared.values()) if self.options.alpha else 0

    def _own(self, node_round: NodeRound) -> Arrays:
        """g_i as the last counted round left it; empty before the first."""
        return _GRADIENT.start(memory_of(node_round.kept), self.counted)
