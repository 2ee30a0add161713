"""EWC: nodes are held near the solutions of their own earlier stages, alone or in a federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fedapps.tasks.options import option
from fedapps.tasks.search import Range

from .base import Round, Scalar
from .continual import ContinualMethod, FederationOptions

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


def estimator_option() -> Any:
    """The option ``estimator`` of the methods that use the Fisher information."""
    return option(
        "per-sample",
        "Fisher information from gradients of single examples, of batches, or of batches times the batch size",
        choices=["per-sample", "per-batch", "per-batch-scaled"],
    )


@dataclass(frozen=True)
class EwcOptions(FederationOptions):
    """The options of EWC."""

    lambda_: float = option(0.05, "weight λ of a node's earlier stages", minimum=0, search=Range(1e-4, 100, log=True))
    anchors: str = option(
        "separate",
        "earlier stages: each at its own solution, or all at the newest one (Online-EWC)",
        choices=["separate", "online"],
    )
    estimator: str = estimator_option()


class Ewc(ContinualMethod):
    """The Fisher information of earlier stages weighs how far each parameter may move.

    λ weighs the earlier stages against the training loss, so its scale is that of the loss. Where the loss is T times a
    negative log-likelihood, λ = T is Bayes' rule for an earlier stage with as many examples: λ = 1 for a cross-entropy,
    λ = 2σ² for a mean squared error with noise of variance σ² (about 0.06 for SocNav1, with σ² ≈ 0.03). A λ for squared
    gradients of the squared error itself must be multiplied by 4σ⁴ (about 0.0036 there).
    """

    name = "ewc"
    line = "EWC: nodes are held near their earlier stages by their Fisher information"
    citation = (
        "Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017, "
        "https://arxiv.org/abs/1612.00796"
    )
    aliases: ClassVar = {"fedavg-ewc": "ewc(mu=0)", "local-ewc": "ewc(local=true)", "fedprox-ewc": "ewc(mu=0.05)"}
    Options = EwcOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            **self.proximal_config(server_round),
            "ewc": self.options.lambda_,
            "ewc-anchors": self.options.anchors,
            "fisher-estimator": self.options.estimator,
        }

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import Ewc as EwcPart

        return [*self.proximal(), EwcPart()]
