"""FedYogi: Yogi at the server."""

from dataclasses import dataclass

from fedapps.strategies import BaseStrategy
from fedapps.tasks.options import option
from fedapps.tasks.search import Around

from .base import Method
from .strategy_parts import StrategyParts


@dataclass(frozen=True)
class FedYogiOptions:
    """The options of FedYogi."""

    learning_rate: float = option(0.1, "server learning rate", above=0, search=Around(10))


class FedYogi(Method):
    """FedAvg whose server steps on the pseudo-gradient with the optimizer ``yogi``."""

    name = "fedyogi"
    line = "FedYogi: Yogi at the server"
    citation = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295"
    Options = FedYogiOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, server_optimizer=parts.optimizer("yogi", self.options.learning_rate))
