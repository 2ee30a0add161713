"""APD: weights as shared times masked plus stage-specific, alone or in a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from flwr.app import ArrayRecord

from fedapps.tasks.options import option
from fedapps.tasks.search import Around

from .base import Round, Scalar
from .continual import ContinualMethod, FederationOptions

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


def weights_only(arrays: ArrayRecord) -> ArrayRecord:
    """The arrays of two or more dimensions; all others are specific to a stage and stay on the node."""
    return ArrayRecord({name: array for name, array in arrays.items() if len(array.shape) > 1})


@dataclass(frozen=True)
class ApdOptions(FederationOptions):
    """The options of APD."""

    l1: float = option(1e-4, "weight of the adaptive parameters' absolute values", minimum=0, search=Around(10))
    drift: float = option(1e-4, "weight of changes to earlier stages' parameters", minimum=0, search=Around(10))


class Apd(ContinualMethod):
    """Additive parameter decomposition; the shared base is averaged, or stays on the node."""

    name = "apd"
    line = "APD: each stage adds sparse parameters to shared ones"
    citation = (
        "Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition, ICLR 2020, "
        "https://arxiv.org/abs/1902.09432"
    )
    aliases: ClassVar = {"fedavg-apd": "apd(mu=0)", "local-apd": "apd(local=true)", "fedprox-apd": "apd(mu=0.05)"}
    Options = ApdOptions

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        return weights_only(arrays)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            **self.proximal_config(server_round),
            "decomposition": "apd",
            "l1-adaptive": self.options.l1,
            "drift": self.options.drift,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.decomposition import Decomposition

        return [Decomposition(), *self.proximal()]
