"""SPFL: federated averaging, then every node personalises its copy before it is evaluated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Around

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class PersonalisationOptions:
    """The options of personalisation."""

    epochs: int = option(10, "epochs of personalisation before an evaluation", minimum=1)
    learning_rate: float = option(0.001, "learning rate L of personalisation", above=0, search=Around(10))


@dataclass(frozen=True)
class SpflOptions(PersonalisationOptions):
    """The options of SPFL."""

    rate_scale: float = option(1.0, "factor on learning-rate; 0.2 is the control for adaptive rates", above=0)


class PersonalisationMethod(Method):
    """FedAvg; before an evaluation each node trains its copy of the model."""

    @property
    def learning_rate(self) -> float:
        """L, above 0."""
        rate: float = self.options.learning_rate
        return rate

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "train":
            return {}
        return {
            "personalise": True,
            "personal-epochs": self.options.epochs,
            "personal-learning-rate": self.learning_rate,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.personalisation import Personalisation

        return [Personalisation()]


class Spfl(PersonalisationMethod):
    """Personalisation at one rate for all parameters."""

    name = "spfl"
    line = "FedAvg, then each node personalises all parameters at the same rate"
    citation = "Nakanoya et al., Personalized Federated Learning of Driver Prediction Models, 2021, Section III"
    keeps = "personal copy"
    work = "+ personal epochs"
    helps = "enough own data to fine-tune"
    Options = SpflOptions

    @property
    def learning_rate(self) -> float:
        rate: float = super().learning_rate * self.options.rate_scale
        return rate
