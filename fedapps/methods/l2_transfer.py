"""L2 transfer: nodes are held near the parameters of their last stage.

Li & Hoiem, Learning without Forgetting, 2017, Section 4, https://arxiv.org/abs/1606.09282.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound

from .continual import Anchors, ContinualMethod, EarlierStages, FederationOptions


@dataclass(frozen=True)
class L2TransferOptions(FederationOptions):
    """The options of L2 transfer."""

    lambda_: float = option(
        0.05, "weight λ of the pull to the last stage", minimum=0, search=Range(1e-4, 100, log=True)
    )


class L2Transfer(ContinualMethod):
    """A penalty on the squared distance to the last stage's parameters."""

    name = "l2-transfer"
    summary = "L2 transfer: nodes are held near the parameters of their last stage"
    citation = "Li and Hoiem, Learning without Forgetting, 2017, Section 4, https://arxiv.org/abs/1606.09282"
    keeps = "earlier solution"
    good_for = "stages; a simple anchor"
    aliases: ClassVar = {"fedavg-l2t": "l2-transfer(mu=0)", "local-l2t": "l2-transfer(local=true)"}
    Options = L2TransferOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [*self.proximal(), L2TransferPart(self.options.lambda_)]


@dataclass(frozen=True)
class L2TransferPart(EarlierStages):
    """L2 transfer: ½ λ ‖θ − θ_{t−1}‖², which holds the parameters near the solution of the last stage."""

    anchors: Anchors = "newest"

    def precision(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {name: np.ones(p.shape, p.detach().cpu().numpy().dtype) for name, p in model.named_parameters()}
