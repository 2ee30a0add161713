"""IFCA: several shared models, of which each node trains the one that fits its data best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, required
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class IfcaOptions:
    """The options of IFCA."""

    clusters: int = option(2, "models among which nodes choose; 1 = FedAvg", minimum=1, search=Choices((1, 2, 3, 4)))
    spread: float = option(
        1.0,
        "how much the first models differ: 1 = independent draws, 0 = not at all; small for a pretrained model",
        minimum=0,
        maximum=1,
    )


class Ifca(Method):
    """Each node receives all models, and trains and evaluates that with the smallest loss on its training data."""

    name = "ifca"
    line = "IFCA: several models; each node chooses the one with the smallest loss on its data"
    citation = (
        "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, "
        "https://arxiv.org/abs/2006.04088"
    )
    sends = "all models down"
    copies = (2.0, 1.0)
    work = "+ loss of k models"
    helps = "unknown groups of nodes"
    needs = ("examples",)
    Options = IfcaOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import IteratedClusters  # nodes do not need it

        return parts.build(
            IteratedClusters, clusters=self.options.clusters, spread=self.options.spread, seed=parts.run.seed
        )

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        yield from required(run, self.name, "a server optimizer has moments of one model", server_optimizer="sgd")
        if self.options.clusters > run.participants:
            yield (
                {"methods", "num_nodes"},
                f"ifca.clusters = {self.options.clusters}: must be at most the {run.participants} nodes that take part",
            )

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import IteratedClusters

        return IteratedClusters.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import IteratedClusters

        return IteratedClusters.robustness_gap

    def compression_conflict(self) -> str:
        from fedapps.strategies import IteratedClusters

        return IteratedClusters.compression_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.nearest_model import NearestModel

        return [NearestModel()]
