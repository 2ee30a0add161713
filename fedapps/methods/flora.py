"""FLoRA: the exact mean of the products of adapters, also of unequal ranks, folded into the frozen weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import listed, option
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class FloraOptions:
    """The options of FLoRA."""

    ranks: str = option(
        "",
        "ranks, separated by commas, of which each node has one, drawn by its key; '' = the rank of the model for all. "
        "max-rank in a node's config limits it",
    )


class Flora(Method):
    """Nodes train new adapters in each round, and the server adds the mean of their products to the weights."""

    name = "flora"
    line = "FLoRA: the exact mean of the products of adapters, also of unequal ranks, is folded into the weights"
    citation = (
        "Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, "
        "NeurIPS 2024, https://arxiv.org/abs/2409.05976"
    )
    sends = "+ adapted weights, to nodes"
    helps = "nodes of unequal ranks, with adapters"
    needs = ("factors",)
    Options = FloraOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import Flora as FloraStrategy  # nodes do not need it

        names = parts.factors
        shared = (*parts.common["shared"], names.weight)
        return parts.build(
            FloraStrategy, shared=shared, a=names.a, b=names.b, weight=names.weight, scale=names.scale,
            seed=parts.run.seed,
        )  # fmt: skip

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"ranks": self.options.ranks} if server_round.message == "train" else {}

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if not all(rank.isdecimal() and int(rank) for rank in listed(self.options.ranks)):
            given = f"flora.ranks = {self.options.ranks!r}"
            yield {"methods"}, f"{given}: must be whole numbers from 1, separated by commas"

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import Flora as FloraStrategy

        return FloraStrategy.privacy_gap if dp.startswith("central") else ""

    def robustness_conflict(self) -> str:
        from fedapps.strategies import Flora as FloraStrategy

        return FloraStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.lower_rank import LowerRank

        return [LowerRank()]
