"""APFL of Deng et al.: nodes evaluate a mixture of the shared model and a personal one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class ApflDengOptions:
    """The options of the mixture."""

    alpha: float = option(
        0.5,
        "share α of the personal model in the mixture, at first; 0 = fedavg, 1 = local",
        minimum=0,
        maximum=1,
        search=Range(0, 1),
    )
    adaptive: bool = option(True, "each node learns its α, by a step of gradient descent on it in every round")


class ApflDeng(Method):
    """Nodes train the shared model as under FedAvg, and a personal model for the loss of its mixture with this one."""

    name = "apfl-deng"
    line = "APFL of Deng et al.: FedAvg, and each node learns a personal model to mix with it (apfl is Nakanoya's)"
    citation = (
        "Deng et al., Adaptive Personalized Federated Learning, 2020, https://arxiv.org/abs/2003.13461; another "
        "method than the APFL of Nakanoya et al., which is apfl"
    )
    keeps = "personal model, its share"
    work = "2 models"
    helps = "some nodes differ more than others"
    Options = ApflDengOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"apfl-deng-alpha": self.options.alpha, "apfl-deng-adaptive": self.options.adaptive}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.mixture import Mixture

        return [Mixture()]
