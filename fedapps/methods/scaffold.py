"""SCAFFOLD: control variates correct the drift of local training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, Scalar, required
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class ScaffoldOptions:
    """The options of SCAFFOLD."""

    global_learning_rate: float = option(1.0, "global step size η_g of the server", above=0)


class Scaffold(Method):
    """Nodes add the difference between the server's and their own control variate to every local gradient.

    In the paper all nodes take equally many steps. Where nodes have unequal numbers of examples, set ``steps`` rather
    than ``epochs``.
    """

    name = "scaffold"
    line = "SCAFFOLD: FedAvg with control variates that correct the drift of local SGD"
    citation = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, "
        "https://arxiv.org/abs/1910.06378"
    )
    keeps = "control variate"
    sends = "+ control variate"
    helps = "uneven data, equal numbers of SGD steps"
    copies = (2.0, 2.0)
    Options = ScaffoldOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import Scaffold as ScaffoldStrategy  # nodes do not need it

        server_optimizer = parts.optimizer("sgd", self.options.global_learning_rate)
        return parts.build(ScaffoldStrategy, server_optimizer=server_optimizer)

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        why = "a control variate is the plain mean of K gradients, taken from K steps of SGD at one learning rate"
        plain: dict[str, Scalar] = {
            "optimizer": "sgd",
            "momentum": 0.0,
            "clip_norm": 0.0,
            "linear_decay": False,
            "plateau_patience": 0,
        }
        yield from required(run, self.name, why, weighting="uniform", **plain)

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import Scaffold as ScaffoldStrategy

        return ScaffoldStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import Scaffold as ScaffoldStrategy

        return ScaffoldStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.control_variates import ControlVariates

        return [ControlVariates()]
