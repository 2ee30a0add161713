"""FedDyn: a regularisation on the nodes that makes their optima agree with the shared one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Section 2, Equation 1 and Algorithm 1,
https://arxiv.org/abs/2111.04263.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import check_fits, read_arrays
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy
from fedapps.strategies import FedDyn as FedDynStrategy
from fedapps.strategies.wire import FEDDYN_GRADIENT
from fedapps.tasks.base import Task

from .base import Conflict, Method, StrategyParts, required


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
    """Each node has a linear term, which the server keeps, and with which its optimum becomes that of the federation.

    With a small α above 0, a round adds the mean updates of all earlier rounds, so that FedAvg is no limit of α → 0.
    """

    name = "feddyn"
    summary = (
        "FedDyn: nodes have linear terms and are held near the shared model; the server corrects the mean by all terms"
    )
    citation = (
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263"
    )
    good_for = "uneven data, all nodes in few rounds"
    message_sizes = (2.0, 1.0)
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

    g_i comes with the message, from the server, which subtracts α (θ − θ_received) after training. Where training ends
    at a minimum, g_i is the gradient of the loss of the node.

    Parameters
    ----------
    gradient : dict of arrays, or None
        g_i, from the record ``feddyn.gradient`` of a TRAIN message, with the names and shapes of received parameters.
    """

    options: FedDynOptions = FedDynOptions()

    gradient: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(FEDDYN_GRADIENT)
        return self if record is None else replace(self, gradient=read_arrays(FEDDYN_GRADIENT, record))

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the message brought no linear term, or one that does not fit the parameters."""
        if self.options.alpha:
            check_fits(FEDDYN_GRADIENT, self.gradient, node_round.received, "FedDyn")

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        if self.options.alpha == 0:
            return None
        # Equation 1: ½ α ‖θ − θ_received‖² − g_iᵀθ beside the loss
        around = QuadraticPrior.around({name: p.detach().clone() for name, p in shared.items()}, self.options.alpha)
        own = {name: torch.from_numpy(array) for name, array in (self.gradient or {}).items() if name in shared}
        return around + QuadraticPrior({}, own)

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        return 2 * sum(parameter.numel() for parameter in shared.values()) if self.options.alpha else 0
