"""A node that trains adapters of a lower rank than the others (FLoRA).

Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024,
https://arxiv.org/abs/2409.05976.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from fedapps.clients.limits import limited_rank
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.tasks.base import Metrics
from torch import nn

from fedapps.base.options import listed
from fedapps.base.seeding import generator

_RANK = "flora.rank"


@dataclass(frozen=True)
class LowerRank(LocalPart):
    """Set the rows of A beyond the node's rank to zero before training.

    The columns of B that belong to them start at zero, so neither has a gradient, and both stay zero.

    Parameters
    ----------
    ranks : str
        Ranks, separated by commas, of which each node has one; empty = the rank of the model. The node config can
        limit it (``max-rank``).
    """

    ranks: str = ""

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        factors = node_round.task.roles.factors
        matrices = [p for name, p in model.named_parameters() if factors and fnmatchcase(name, factors.a)]
        ranks = [int(rank) for rank in listed(self.ranks)] or [max((len(a) for a in matrices), default=0)]
        rank = limited_rank(int(generator(node_round.seed, _RANK, node_round.data.key).choice(ranks)))
        with torch.no_grad():
            for a in matrices:
                a[rank:] = 0.0
        return {_RANK: rank}

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {_RANK: float(node_round.found[_RANK])}
