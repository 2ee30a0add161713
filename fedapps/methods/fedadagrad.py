"""FedAdagrad: AdaGrad at the server."""

from dataclasses import dataclass

from fedapps.strategies import BaseStrategy
from fedapps.tasks.options import option
from fedapps.tasks.search import Around

from .base import Method
from .strategy_parts import StrategyParts


@dataclass(frozen=True)
class FedAdagradOptions:
    """The options of FedAdagrad."""

    learning_rate: float = option(0.01, "server learning rate", above=0, search=Around(10))


class FedAdagrad(Method):
    """FedAvg whose server steps on the pseudo-gradient with the optimizer ``adagrad``."""

    name = "fedadagrad"
    line = "FedAdagrad: AdaGrad at the server"
    citation = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295"
    Options = FedAdagradOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, server_optimizer=parts.optimizer("adagrad", self.options.learning_rate))
