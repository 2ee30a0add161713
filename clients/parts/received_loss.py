"""A node of q-FFL: report the loss of the received model.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2, https://arxiv.org/abs/1905.10497.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.training import mean_loss
from fedapps.strategies.wire import Q_FFL_LOSS
from fedapps.tasks.base import Metrics
from torch import nn


@dataclass(frozen=True)
class ReceivedLoss(LocalPart):
    """Report F_k(w), the mean loss of the received model over all training examples of the node.

    It is measured before training and in evaluation mode, also where a round trains on a part of the examples.
    """

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, float]:
        loss = mean_loss(node_round.task, model, node_round.data, "train", node_round.device)
        return {Q_FFL_LOSS: loss}

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {Q_FFL_LOSS: node_round.found[Q_FFL_LOSS]}
