"""FedAvgM: momentum at the server."""

from dataclasses import dataclass

from fedapps.strategies import BaseStrategy
from fedapps.tasks.options import option
from fedapps.tasks.search import Around

from .base import Method
from .strategy_parts import StrategyParts


@dataclass(frozen=True)
class FedAvgMOptions:
    """The options of FedAvgM."""

    learning_rate: float = option(0.1, "server learning rate", above=0, search=Around(10))


class FedAvgM(Method):
    """FedAvg whose server steps on the pseudo-gradient with the optimizer ``momentum``."""

    name = "fedavgm"
    line = "FedAvgM: momentum at the server"
    citation = "Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019, https://arxiv.org/abs/1909.06335"
    Options = FedAvgMOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, server_optimizer=parts.optimizer("momentum", self.options.learning_rate))
