"""Per-FedAvg: a shared model from which one gradient step on a node's data gives a good model for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.strategies import BaseStrategy
from fedapps.strategies.wire import STALE_METRICS_PREFIX

from .base import Method, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class PerFedAvgOptions:
    """The options of Per-FedAvg."""

    inner_rate: float = option(
        0.01,
        "learning rate α of the step to a node's data, in training and before an evaluation; stale.* are the metrics "
        "without it; 0 = FedAvg",
        minimum=0,
        search=Range(0.001, 1, log=True),
    )
    gradient: str = option(
        "first-order",
        "first-order: leave out how the step at α changes with the model; hessian-free: measure it by two further "
        "gradients; it needs an inner-rate below 1 / the curvature of the loss",
        choices=["first-order", "hessian-free"],
    )


class PerFedAvg(Method):
    """FedAvg of nodes that train the model for its loss after one step of gradient descent.

    The step at α is one of plain gradient descent, so that a good α depends on the loss, not on the run's optimizer.
    """

    name = "per-fedavg"
    line = "Per-FedAvg: FedAvg of a model for its loss after one gradient step, which nodes take before evaluations"
    citation = (
        "Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning "
        "Approach, NeurIPS 2020, https://arxiv.org/abs/2002.07948"
    )
    work = "+ 1 step to evaluate"
    helps = "uneven data; new nodes adapt fast"
    Options = PerFedAvgOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        means = parts.common["metric_means"]
        stale = {STALE_METRICS_PREFIX + name: rule for name, rule in means.items()}
        return parts.build(BaseStrategy, metric_means={**means, **stale})

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"inner-rate": self.options.inner_rate, "meta-gradient": self.options.gradient}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.meta_gradients import MetaGradients

        return [MetaGradients()]
