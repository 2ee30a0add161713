"""Adaptive updating (FedVocab): adapt the private parameters to what was received, then train all together.

Zhang et al., FedVocab, Section 3.3: a node that was not drawn for some rounds has private parameters that no longer fit
the shared ones. It trains them alone for one epoch, with the received parameters frozen, before it trains the whole
model. "It is sufficient to reuse the same optimization method": each phase has the same optimizer with the same
settings, but separate moments and learning-rate decay, and no gradient of one phase reaches the other. LG-FedAvg (Liang
et al. 2020, https://arxiv.org/abs/2001.01523) is the same without the first phase.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from clients.local_part import PHASES, LocalPart, NodeRound
from clients.training import Phase
from tasks.base import NodeData


@dataclass(frozen=True)
class AdaptiveUpdating(LocalPart):
    """Put a phase that trains the private parameters alone before the joint phase, on the same examples.

    Buffers, such as the statistics of a normalisation, follow the data in both phases. A plateau gives the first phase
    its rate, and counts the epochs of the joint phase only.

    Parameters
    ----------
    adapt_epochs : int
        Epochs of the first phase. With 0, or where no parameter is private, only the joint phase is left.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    adapt_epochs: int = 0

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        private = [name for name, _ in model.named_parameters() if name not in node_round.received]
        if self.adapt_epochs == 0 or not private:
            return plan
        adapting = replace(plan[-1], epochs=self.adapt_epochs, steps=0, trainable=private, validation_loss=None)
        return [*plan[:-1], adapting, plan[-1]]
