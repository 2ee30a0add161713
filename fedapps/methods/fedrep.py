"""FedRep: the head stays on the nodes and is trained first, then the body alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.tasks.profiles import PrivateParameters

from .base import Round, Scalar
from .partial import PartialMethod

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FedRepOptions:
    """The options of FedRep."""

    head_epochs: int = option(
        10, "epochs in which a node trains its head alone, before those of the body", minimum=1, search=Range(1, 10)
    )


class FedRep(PartialMethod):
    """A round trains the head with the received body frozen, then the body with the head frozen."""

    name = "fedrep"
    line = "FedRep: the head stays on the nodes; each round trains the head alone, then the body alone"
    citation = (
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, "
        "https://arxiv.org/abs/2102.07078"
    )
    work = "head, then body"
    helps = "one representation, different outputs"
    needs = ("head",)
    Options = FedRepOptions

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(task.roles.head)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"head-epochs": self.options.head_epochs} if server_round.message == "train" else {}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.alternating import Alternating

        return [Alternating()]
