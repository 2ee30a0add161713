"""FedRecon: the private parameters are reconstructed in every round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range

from .base import Round, Scalar
from .partial import PartialMethod, optimizer_config

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedReconOptions:
    """The options of FedRecon."""

    epochs: int = option(1, "epochs in which nodes train their private parameters", minimum=1)
    support_share: float = option(
        0.5,
        "share of a node's examples for that; the rest trains the shared parameters",
        above=0,
        maximum=0.99,
        search=Range(0.2, 0.8),
    )


class FedRecon(PartialMethod):
    """The embeddings of digit words stay private; the nodes keep nothing between rounds."""

    name = "fedrecon"
    line = "FedRecon: the embeddings of digit words stay private, reconstructed in every round"
    citation = (
        "Singhal et al., Federated Reconstruction: Partially Local Federated Learning, NeurIPS 2021, "
        "https://arxiv.org/abs/2102.03448"
    )
    work = "+ reconstruction"
    helps = "nodes without memory; own words"
    task = "text"
    patterns = ("embedding*private",)
    Options = FedReconOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        # An evaluation reconstructs, too, so it needs what training needs.
        return {
            "reconstruct-epochs": self.options.epochs,
            "support-share": self.options.support_share,
            **optimizer_config(server_round),
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.reconstruction import Reconstruction

        return [Reconstruction()]
