"""FedDyn: a regularisation on the nodes that makes their optima agree with the shared one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, Round, Scalar, required
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


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
    line = (
        "FedDyn: nodes keep a linear term and are held near the shared model; the server corrects the mean by all terms"
    )
    citation = (
        "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, https://arxiv.org/abs/2111.04263"
    )
    keeps = "linear term"
    helps = "uneven data, all nodes in few rounds"
    Options = FedDynOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import FedDyn as FedDynStrategy  # nodes do not need it

        return parts.build(FedDynStrategy, alpha=self.options.alpha)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"dynamic": self.options.alpha} if server_round.message == "train" else {}

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        why = "the server corrects the plain mean of the trained models"
        yield from required(run, self.name, why, weighting="uniform", server_optimizer="sgd", server_learning_rate=1.0)

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import FedDyn as FedDynStrategy

        return FedDynStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import FedDyn as FedDynStrategy

        return FedDynStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.dynamic import DynamicRegularisation

        return [DynamicRegularisation()]
