"""FedCurv: nodes are held near the present solutions of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.strategies import BaseStrategy, FisherExchange

from .base import Method
from .continual import estimator_option
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedCurvOptions:
    """The options of FedCurv."""

    lambda_: float = option(
        0.5,
        "weight λ, with the 1/2 of a quadratic penalty before it",
        minimum=0,
        search=Range(1e-4, 100, log=True),
    )
    estimator: str = estimator_option()


class FisherMethod(Method):
    """A method whose nodes exchange the diagonal of their Fisher information."""

    def privacy_conflict(self, dp: str) -> str:
        return FisherExchange.privacy_gap

    def robustness_conflict(self) -> str:
        return FisherExchange.robustness_gap

    def compression_conflict(self) -> str:
        return FisherExchange.compression_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.fisher_exchange import FisherPrior

        return [FisherPrior()]


class FedCurv(FisherMethod):
    """FedAvg with EWC between nodes."""

    name = "fedcurv"
    line = "FedCurv: nodes are held near the other nodes' present solutions"
    citation = (
        "Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019, "
        "https://arxiv.org/abs/1910.07796"
    )
    keeps = "Fisher information"
    sends = "+ Fisher, priors"
    work = "+ Fisher estimate"
    helps = "uneven data, few rounds"
    copies = (3.0, 2.0)
    Options = FedCurvOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        weights = {"own_past": 0.0, "others_past": 0.0, "others_now": self.options.lambda_}
        # Without stages the anchors have no effect; they have the default of the strategy's other user.
        return parts.build(FisherExchange, **weights, anchors="online", estimator=self.options.estimator)
