"""FLoRA: the exact mean of the products of adapters, also of unequal ranks, folded into the frozen weights.

Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024,
https://arxiv.org/abs/2409.05976.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn

from fedapps.base.options import option, split_names
from fedapps.base.seeding import generator
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.rules import limited_rank
from fedapps.config.run_config import RunConfig, compression_of
from fedapps.strategies import BaseStrategy
from fedapps.strategies import Flora as FloraStrategy
from fedapps.strategies.algorithms.flora import NEW_FACTORS
from fedapps.strategies.arrays import Arrays
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, StrategyParts

_RANK = "flora.rank"


@dataclass(frozen=True)
class FloraOptions:
    """The options of FLoRA."""

    ranks: str = option(
        "",
        "ranks, separated by commas, of which each node has one, drawn by its key; '' = the rank of the model for all, "
        "which is the largest. max-rank in a node's config limits it",
    )


class Flora(Method):
    """Nodes train new adapters in each round, and the server adds the mean of their products to the weights."""

    name = "flora"
    summary = "FLoRA: the exact mean of the products of adapters, also of unequal ranks, is folded into the weights"
    citation = (
        "Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, "
        "NeurIPS 2024, https://arxiv.org/abs/2409.05976"
    )
    sends = "+ adapted weights, to nodes"
    good_for = "nodes of unequal ranks, with adapters"
    needs = ("factors",)
    Options = FloraOptions
    Strategy = FloraStrategy
    covered_by_local_noise = True

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        names = parts.factors
        shared = (*parts.common["shared"], names.weight)
        return parts.build(
            self.Strategy, shared=shared, a=names.a, b=names.b, weight=names.weight, scale=names.scale,
            seed=parts.run.seed,
        )  # fmt: skip

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if not all(rank.isdecimal() and int(rank) for rank in split_names(self.options.ranks)):
            setting = f"flora.ranks = {self.options.ranks!r}"
            yield {"methods"}, f"{setting}: must be whole numbers from 1, separated by commas"

        compression = compression_of(run)
        if compression and compression.error_feedback:
            setting = f"compression = {run.compression!r}: must be 'none' or 'bf16' with flora"
            yield {"methods", "compression"}, f"{setting}, because {NEW_FACTORS}"

    def local_parts(self) -> Sequence[LocalPart]:
        return [FloraPart(self.options)]


@dataclass(frozen=True)
class FloraPart(LocalPart):
    """Set the rows of A beyond the node's rank to zero before training.

    The columns of B that belong to them start at zero, so neither has a gradient, and both stay zero.
    """

    options: FloraOptions = FloraOptions()

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The model's values, with the received rows of A beyond the rank: zeros would count as an update of them."""
        arrays, received, rank = super().outgoing(model, node_round), node_round.received, node_round.measured[_RANK]
        padded = [name for name in _matrices(model, node_round) if name in arrays]
        return {**arrays, **{name: np.concatenate((arrays[name][:rank], received[name][rank:])) for name in padded}}

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, Any]:
        matrices = list(_matrices(model, node_round).values())
        most = max((len(a) for a in matrices), default=0)
        ranks = [min(int(rank), most) for rank in split_names(self.options.ranks)] or [most]
        rank = limited_rank(int(generator(node_round.seed, _RANK, node_round.data.key).choice(ranks)))
        # A node of rank r_k trains B_k [m, r_k] and A_k [r_k, n], here padded with zeros
        with torch.no_grad():
            for a in matrices:
                a[rank:] = 0.0
        return {_RANK: rank}

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {_RANK: float(node_round.measured[_RANK])}


def _matrices(model: nn.Module, node_round: NodeRound) -> dict[str, nn.Parameter]:
    """The factors A, by name."""
    factors = node_round.task.roles.factors
    return {name: p for name, p in model.named_parameters() if factors and fnmatchcase(name, factors.a)}
