"""SCAFFOLD: control variates correct the drift of local training.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1 with
Option II, https://arxiv.org/abs/1910.06378.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from flwr.app import RecordDict
from torch import nn

from fedapps.base.options import option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.settings import check_fits, read_arrays
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy
from fedapps.strategies import Scaffold as ScaffoldStrategy
from fedapps.strategies.wire import SCAFFOLD_CONTROL, SCAFFOLD_LENGTH
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, Scalar, StrategyParts, required


@dataclass(frozen=True)
class ScaffoldOptions:
    """The options of SCAFFOLD."""

    global_learning_rate: float = option(1.0, "global step size η_g of the server", above=0)


class Scaffold(Method):
    """Nodes add the difference between the server's and their own control variate, which it keeps, to every gradient.

    In the paper all nodes take equally many steps. Where nodes have unequal numbers of examples, set ``steps`` rather
    than ``epochs``.
    """

    name = "scaffold"
    summary = "SCAFFOLD: FedAvg with control variates that correct the drift of local SGD"
    citation = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, "
        "https://arxiv.org/abs/1910.06378"
    )
    good_for = "uneven data, equal numbers of SGD steps"
    message_sizes = (2.0, 1.0)
    Options = ScaffoldOptions
    Strategy = ScaffoldStrategy

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        server_optimizer = parts.optimizer("sgd", self.options.global_learning_rate)
        return parts.build(self.Strategy, server_optimizer=server_optimizer)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        why = "a control variate is the plain mean of K gradients, taken from K steps of SGD at one learning rate"
        plain: dict[str, Scalar] = {
            "optimizer": "sgd",
            "momentum": 0.0,
            "clip_norm": 0.0,
            "linear_decay": False,
            "plateau_patience": 0,
        }
        yield from required(run, self.name, why, weighting="uniform", **plain)

    def local_parts(self) -> Sequence[LocalPart]:
        return [ScaffoldPart()]


@dataclass(frozen=True)
class ScaffoldPart(LocalPart):
    """Add c − c_i, which the server sends, to every local gradient, and report K η_l, from which it computes c_i⁺.

    K is the number of local steps, η_l their learning rate. While all control variates are 0, training equals plain
    training bit for bit.

    Parameters
    ----------
    correction : dict of arrays, or None
        c − c_i, from the record ``scaffold.control`` of a TRAIN message, with the names and shapes of the received
        floating-point arrays.
    """

    correction: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(SCAFFOLD_CONTROL)
        return self if record is None else replace(self, correction=read_arrays(SCAFFOLD_CONTROL, record))

    def check(self, node_round: NodeRound) -> None:
        """Raise ``ValueError`` if the message brought no control variate, or one that does not fit the parameters."""
        check_fits(SCAFFOLD_CONTROL, self.correction, node_round.received, "Scaffold")

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        """The linear penalty (c − c_i)ᵀθ, whose gradient is c − c_i."""
        # Equation 3: a local step is y ← y − η_l (g(y) + c − c_i)
        correction = self.correction or {}
        return QuadraticPrior({}, {name: torch.as_tensor(-correction[name]) for name in shared if name in correction})

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {SCAFFOLD_LENGTH: node_round.steps * node_round.settings.training.learning_rate}
