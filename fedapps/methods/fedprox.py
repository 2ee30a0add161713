"""FedProx: FedAvg with a proximal term on the nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedProxOptions:
    """The options of FedProx."""

    mu: float = option(
        0.001,
        "weight µ of the proximal term; 0 = FedAvg; the authors tune from 0.001 to 1",
        minimum=0,
        search=Choices((0.0, 0.001, 0.01, 0.1, 1.0)),
    )


class FedProx(Method):
    """The nodes are held near the shared model with weight µ."""

    name = "fedprox"
    line = "FedProx: FedAvg with a proximal term that holds the nodes near the shared model"
    citation = (
        "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127"
    )
    helps = "uneven data, long local training"
    Options = FedProxOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"proximal": self.options.mu} if server_round.message == "train" else {}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.proximal import Proximal

        return [Proximal()]
