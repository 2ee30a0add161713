"""Logit adjustment: a loss that does not reward a classifier for the label shares of its node.

Menon et al., Long-tail Learning via Logit Adjustment, ICLR 2021, Equation 10, https://arxiv.org/abs/2007.07314: in the
softmax cross-entropy of training, each logit f_y becomes f_y + τ log π_y, where π_y is the share of the label y. Here,
π_y is the share among the node's training examples. In tests, the logits f_y are those of balanced labels. For examples
with the node's own label shares, the prediction is that of training, f_y + τ log π_y
(:func:`fedapps.tasks.partitioners.own_label_shares`).
"""

from dataclasses import dataclass

import torch
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.tasks.partitioners import adjust_logits
from torch import Tensor, nn


@dataclass(frozen=True)
class LogitAdjustment(LocalPart):
    """Add τ log π_y to the logits in training, and in tests on examples with the node's label shares.

    Parameters
    ----------
    tau : float
        τ ≥ 0. With 0 the loss is the plain cross-entropy; 1 makes the classifier's scores those of balanced labels.
    """

    tau: float = 0.0

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        if self.tau == 0 or node_round.data.count("train") == 0:
            return model
        shares = smoothed_shares(node_round.data.splits["train"]["label"], node_round.task.num_classes)
        adjust_logits(model, self.tau * shares.log())
        return model


def smoothed_shares(labels: Tensor, num_classes: int) -> Tensor:
    """The shares of the labels with Laplace's smoothing: (n_y + 1) / (n + classes), float64 ``[num_classes]``.

    A label that the node does not have would have the share 0, and its logit would be adjusted by −∞.
    """
    counts = torch.bincount(labels, minlength=num_classes).double() + 1
    return counts / counts.sum()
