"""EWC: nodes are held near their earlier stages by their Fisher information.

Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017, Equation 3,
https://arxiv.org/abs/1612.00796. Schwarz et al., Progress & Compress, ICML 2018, Section 3.2 (Online-EWC),
https://arxiv.org/abs/1805.06370. All of it stays on the node. The strategy ``FisherExchange`` with ``own_past`` alone
trains the same, but sends these arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.fisher import Estimator, fisher_of_node
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.config.run_config import RunConfig
from fedapps.tasks.base import Task

from .base import Conflict
from .continual import ContinualMethod, EarlierStages, FederationOptions, estimator_conflicts, estimator_option


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
    gradients of the squared error itself, which the estimators loss-* take, must be multiplied by 4σ⁴ (about 0.0036
    there) for the others.
    """

    name = "ewc"
    summary = "EWC: nodes are held near their earlier stages by their Fisher information"
    citation = (
        "Kirkpatrick et al., Overcoming Catastrophic Forgetting in Neural Networks, PNAS 2017, "
        "https://arxiv.org/abs/1612.00796"
    )
    keeps = "earlier solution, its Fisher"
    work = "+ Fisher estimate"
    good_for = "stages; forgetting matters"
    aliases: ClassVar = {"fedavg-ewc": "ewc(mu=0)", "local-ewc": "ewc(local=true)", "fedprox-ewc": "ewc(mu=0.05)"}
    Options = EwcOptions

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        yield from super().conflicts(run, task)
        yield from estimator_conflicts(self, task)

    def local_parts(self) -> Sequence[LocalPart]:
        return [*self.proximal(), EwcPart(self.options.lambda_, self.options.anchors, self.options.estimator)]


@dataclass(frozen=True)
class EwcPart(EarlierStages):
    """Elastic weight consolidation: ½ λ Σ_s F_s (θ − θ_s)² over the node's earlier stages s.

    Parameters
    ----------
    estimator : Estimator
        How F is estimated (:func:`~fedapps.clients.fisher.diagonal_fisher`).
    """

    estimator: Estimator = "per-sample"

    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return fisher_of_node(model, node_round, self.estimator)
