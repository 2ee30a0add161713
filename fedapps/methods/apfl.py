"""APFL: personalisation whose rates follow the variance of the parameters across nodes."""

from dataclasses import dataclass

from fedapps.base.options import Choices, option
from fedapps.strategies import AdaptiveRates, BaseStrategy

from .base import StrategyParts
from .spfl import PersonalisationMethod, PersonalisationOptions


@dataclass(frozen=True)
class ApflOptions(PersonalisationOptions):
    """The options of APFL."""

    granularity: str = option(
        "tensor", "one adaptive rate per", choices=["tensor", "parameter"], search=Choices(("tensor", "parameter"))
    )
    power: float = option(
        1.0, "power of the ratio of variances; 0.5 = ratio of standard deviations", above=0, search=Choices((0.5, 1.0))
    )


class Apfl(PersonalisationMethod):
    """FedAvg; before an evaluation each node trains its copy at the rates that the server measured."""

    name = "apfl"
    summary = "FedAvg, then each node personalises at rates from the variance across nodes"
    citation = (
        "Nakanoya et al., Personalized Federated Learning of Driver Prediction Models, 2021, Algorithm 1; another "
        "method than the APFL of Deng et al., which is apfl-deng"
    )
    keeps = "personal copy"
    work = "+ personal epochs"
    good_for = "nodes differ in some parameters only"
    Options = ApflOptions
    Strategy = AdaptiveRates
    covered_by_local_noise = True

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(self.Strategy, granularity=self.options.granularity, power=self.options.power)
