"""FedSAM: FedAvg whose nodes look for flat minima."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Around
from fedapps.methods.base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedSamOptions:
    """The options of FedSAM."""

    radius: float = option(
        0.05, "radius ρ of the ball in which a step looks for the largest loss", minimum=0, search=Around(10)
    )


class FedSam(Method):
    """FedAvg of nodes that train by sharpness-aware minimisation."""

    name = "fedsam"
    line = "FedSAM: nodes train by sharpness-aware minimisation"
    citation = (
        "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022, "
        "https://arxiv.org/abs/2206.02618"
    )
    Options = FedSamOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"sam-radius": self.options.radius} if server_round.message == "train" else {}

    def local_parts(self) -> "Sequence[LocalPart]":
        from .local_part import SharpnessAware

        return [SharpnessAware()]
