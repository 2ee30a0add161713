"""FedOpt: the server steps on the pseudo-gradient with an optimizer of its own."""

from dataclasses import dataclass
from typing import ClassVar

from fedapps.base.options import Around, option
from fedapps.strategies import BaseStrategy

from .base import Method, StrategyParts

_REDDI = "Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295"


@dataclass(frozen=True)
class FedOptOptions:
    """The options of FedAdam, FedAvgM and FedYogi."""

    learning_rate: float = option(
        0.1,
        "server learning rate; adam and yogi move a parameter by about as much in a round, so that a good value "
        "depends on how far parameters are to go in all rounds",
        above=0,
        search=Around(10),
    )


@dataclass(frozen=True)
class FedAdagradOptions(FedOptOptions):
    """The options of FedAdagrad."""

    learning_rate: float = option(0.01, "server learning rate", above=0, search=Around(10))


class FedOpt(Method):
    """FedAvg with a server optimizer.

    Attributes
    ----------
    optimizer : str
        Its name, such as ``adam``.
    """

    optimizer: ClassVar[str]
    Options = FedOptOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, server_optimizer=parts.optimizer(self.optimizer, self.options.learning_rate))


class FedAdagrad(FedOpt):
    """FedOpt with AdaGrad, without momentum as in the experiments of its paper; FedVPR seems to have one of .9."""

    name = "fedadagrad"
    summary = "FedAdagrad: AdaGrad at the server"
    citation = _REDDI
    good_for = "rare features; few nodes a round"
    optimizer = "adagrad"
    Options = FedAdagradOptions


class FedAdam(FedOpt):
    """FedOpt with Adam."""

    name = "fedadam"
    summary = "FedAdam: Adam at the server"
    citation = _REDDI
    good_for = "many rounds; layers of other scales"
    optimizer = "adam"


class FedAvgM(FedOpt):
    """FedOpt with momentum."""

    name = "fedavgm"
    summary = "FedAvgM: momentum at the server"
    citation = "Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019, https://arxiv.org/abs/1909.06335"
    good_for = "few nodes a round; uneven labels"
    optimizer = "momentum"


class FedYogi(FedOpt):
    """FedOpt with Yogi."""

    name = "fedyogi"
    summary = "FedYogi: Yogi at the server"
    citation = _REDDI
    good_for = "noisy rounds, where Adam is unstable"
    optimizer = "yogi"
