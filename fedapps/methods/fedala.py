"""FedALA: a node mixes the received model into its last one, with a learned weight for every parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedAlaOptions:
    """The options of FedALA."""

    weight_rate: float = option(
        1.0,
        "step size of the weights; 0 = FedAvg, of which nodes evaluate what they trained",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )
    layers: int = option(1, "layers to mix, counted from the output; 0 = all", minimum=0)
    share: float = option(0.8, "share of a node's batches that train the weights", above=0, maximum=1)
    first_passes: int = option(
        50, "passes over these batches when a node trains its weights for the first time, unless they settle before",
        minimum=1,
    )  # fmt: skip


class FedAla(Method):
    """Nodes start from an element-wise mixture of the received and their last model, and evaluate what they trained.

    The defaults of step size, share and layers come from the paper's code, https://github.com/TsingZ0/FedALA.
    """

    name = "fedala"
    line = "FedALA: FedAvg, but nodes mix the received top layers into their last model, with weights that they learn"
    citation = (
        "Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, "
        "https://arxiv.org/abs/2212.01197"
    )
    keeps = "mixing weights, its last model"
    work = "+ fit of the weights"
    helps = "uneven labels, personal evaluation"
    Options = FedAlaOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "evaluate":
            return {}
        return {
            "ala-rate": self.options.weight_rate,
            "ala-layers": self.options.layers,
            "ala-share": self.options.share,
            "ala-passes": self.options.first_passes,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.local_aggregation import LocalAggregation

        return [LocalAggregation()]
