"""Networks that read a score at the robot's node of padded batches of graphs."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from .graphs import FEATURES


class GraphConvolutions(nn.Module):
    """Graph convolutions on compact graphs (:func:`~tasks.social.graphs.compact_graphs`).

    With the defaults the network of Guerdan and Gunes, Appendix A.3: 9 convolutions 7 -> 32 -> .. -> 32 -> 1, ELU
    between them, tanh at the end, 7,681 parameters. Weights start Glorot-uniform and biases at 0, as in DGL. A layer
    is ``elu(A X Wᵀ + b)`` for the normalised adjacency A, features X and ``weight`` W ``[outputs, inputs]``.
    """

    def __init__(self, hidden: int = 32, layers: int = 8) -> None:
        super().__init__()
        widths = [FEATURES, *[hidden] * layers, 1]
        linear = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
        for layer in linear:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(linear)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        """``nodes`` ``[b, n, 7]`` and normalised ``adjacency`` ``[b, n, n]`` to scores in (-1, 1) ``[b]``."""
        hidden = nodes
        for layer in list(self.layers)[:-1]:
            hidden = elu(layer(torch.bmm(adjacency, hidden)))
        # Of the last layer only the robot is read.
        return torch.tanh(self.layers[-1](torch.bmm(adjacency[:, :1], hidden))).reshape(-1)
