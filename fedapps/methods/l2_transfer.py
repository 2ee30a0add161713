"""L2 transfer: nodes are held near the solution of their last stage, alone or in a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedapps.tasks.options import option
from fedapps.tasks.search import Range

from .base import Round, Scalar
from .continual import ContinualMethod, FederationOptions

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class L2TransferOptions(FederationOptions):
    """The options of L2 transfer."""

    lambda_: float = option(
        0.05,
        "weight λ of the pull to the last stage",
        minimum=0,
        search=Range(1e-4, 100, log=True),
    )


class L2Transfer(ContinualMethod):
    """A penalty on the squared distance to the last stage's parameters."""

    name = "l2-transfer"
    line = "L2 transfer: nodes are held near the parameters of their last stage"
    citation = "Li and Hoiem, Learning without Forgetting, 2017, Section 4, https://arxiv.org/abs/1606.09282"
    aliases: ClassVar = {"fedavg-l2t": "l2-transfer(mu=0)", "local-l2t": "l2-transfer(local=true)"}
    Options = L2TransferOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {**self.proximal_config(server_round), "l2-transfer": self.options.lambda_}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import L2Transfer as L2TransferPart

        return [*self.proximal(), L2TransferPart()]
