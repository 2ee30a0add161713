"""Elastic Transfer: nodes are held near their own past, the others' past and the others' present."""

from dataclasses import dataclass
from typing import Any

from fedapps.base.options import Range, option
from fedapps.strategies import BaseStrategy, FisherExchange

from .base import StrategyParts
from .continual import estimator_option
from .fedcurv import FisherMethod


def _weight_option(default: float, line: str) -> Any:
    return option(default, line, minimum=0, search=Range(1e-4, 100, log=True))


@dataclass(frozen=True)
class ElasticTransferOptions:
    """The options of Elastic Transfer."""

    own_past: float = _weight_option(0.0, "λ1: weight of a node's own earlier stages")
    others_past: float = _weight_option(0.5, "λ2: weight of other nodes' earlier stages")
    others_now: float = _weight_option(0.0, "λ3: weight of other nodes' last round")
    anchors: str = option(
        "online", "earlier stages: each at its own solution, or all at the newest one", choices=["online", "separate"]
    )
    estimator: str = estimator_option()


class ElasticTransfer(FisherMethod):
    """FedAvg with a quadratic penalty from the Fisher information of all nodes and stages."""

    name = "elastic-transfer"
    summary = "Elastic Transfer: nodes are held near their own past, the others' past and the others' present"
    citation = (
        "Guerdan and Gunes, Decentralized Robot Learning for Personalization and Privacy, 2022, Algorithm 1, "
        "https://arxiv.org/abs/2201.05527"
    )
    keeps = "earlier solution, its Fisher"
    sends = "+ Fisher, priors"
    work = "+ Fisher estimate"
    good_for = "data of nodes that change by stages"
    message_sizes = (3.0, 2.0)
    Options = ElasticTransferOptions
    Strategy = FisherExchange

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(
            self.Strategy,
            own_past=self.options.own_past,
            others_past=self.options.others_past,
            others_now=self.options.others_now,
            anchors=self.options.anchors,
            estimator=self.options.estimator,
        )
