"""Clustered FL: clusters of nodes whose updates are alike, found during training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fedapps.base.options import option
from fedapps.clients.local_part import LocalPart
from fedapps.config.run_config import RunConfig
from fedapps.methods.h_fl import SharedEvaluation
from fedapps.strategies import BaseStrategy, ClusteredFedAvg
from fedapps.strategies.optimizers import OPTIMIZER_NAMES
from fedapps.tasks.base import Task

from .base import Conflict, Method, StrategyParts


@dataclass(frozen=True)
class ClusteredOptions:
    """The options of clustered FL."""

    clusters: int = option(2, "clusters to find, at most", minimum=1)
    first: int = option(1, "round after which they are found", minimum=1)
    every: int = option(0, "rounds until they are found again; 0 = never", minimum=0)
    optimizer: str = option(
        "sgd",
        "server optimizer of each cluster; server-optimizer is that of the average of the clusters",
        choices=OPTIMIZER_NAMES,
    )
    learning_rate: float = option(1.0, "server learning rate of each cluster", above=0)


class Clustered(Method):
    """A model per cluster of nodes with similar updates; nodes are evaluated on the global model, too."""

    name = "clustered"
    summary = "clustered FL: several models, each for nodes whose updates are alike"
    citation = (
        "Briggs, Fan and Andras, Federated Learning with Hierarchical Clustering of Local Updates, 2020, "
        "https://arxiv.org/abs/2004.11791"
    )
    good_for = "groups of nodes whose data contradict"
    Options = ClusteredOptions
    Strategy = ClusteredFedAvg
    covered_by_local_noise = True

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(
            self.Strategy,
            num_clusters=self.options.clusters,
            first=self.options.first,
            every=self.options.every,
            cluster_optimizer=partial(parts.optimizer, self.options.optimizer, self.options.learning_rate),
            evaluate_shared=True,
        )

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if self.options.clusters > run.participants:
            held_out = f" without held-out-nodes = {run.held_out_nodes}" if run.held_out_nodes else ""
            yield (
                {"methods", "num_nodes"},
                f"clustered.clusters = {self.options.clusters}: must be at most num-nodes = {run.num_nodes}{held_out}",
            )

    def local_parts(self) -> Sequence[LocalPart]:
        return [SharedEvaluation()]
