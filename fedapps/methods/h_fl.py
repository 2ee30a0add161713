"""Hierarchical FL: a model for each group of nodes, averaged with the others every few rounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from flwr.app import RecordDict

from fedapps.base.options import option
from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart
from fedapps.clients.settings import read_arrays
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, FixedPerCluster, HierarchicalFedAvg
from fedapps.strategies.algorithms.h_fl import CLUSTER
from fedapps.strategies.optimizers import OPTIMIZER_NAMES
from fedapps.strategies.wire import HIERARCHICAL_SHARED
from fedapps.tasks.base import Task

from .base import Conflict, Method, StrategyParts, own_draws


@dataclass(frozen=True)
class SharedEvaluation(LocalPart):
    """Evaluate the model that all clusters share, too, if the message brings it; its metrics start with ``shared.``.

    Parameters
    ----------
    shared : dict of arrays, or None
        The model of all clusters.
    """

    shared: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(HIERARCHICAL_SHARED)
        return self if record is None else replace(self, shared=read_arrays(HIERARCHICAL_SHARED, record))

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return {} if self.shared is None else {"shared": self.shared}


@dataclass(frozen=True)
class HFlOptions:
    """The options of hierarchical FL."""

    groups: str = option(
        "city", "groups of nodes that are the clusters, the finest first, separated by commas (city,continent)"
    )
    intervals: str = option("15", "for each group, the rounds between two averages of its clusters; 0 = never (5,15)")
    cohort: int = option(
        0, "nodes of each cluster that train in a round; 0 = the nodes that the other methods train", minimum=0
    )
    optimizer: str = option(
        "sgd",
        "server optimizer of each cluster; server-optimizer is that of the average of the clusters",
        choices=OPTIMIZER_NAMES,
    )
    learning_rate: float = option(1.0, "server learning rate of each cluster", above=0)
    weights: str = option(
        "equal", "weights of clusters in the average: all alike, or by their replies", choices=["equal", "replies"]
    )
    max_weight: float = option(
        1.0,
        "largest share of a cluster in the average above it; what is left over goes to the present average; 1 = no cap",
        above=0,
        maximum=1,
    )

    def tiers(self) -> tuple[list[str], list[int]]:
        """The groups and their intervals. Raises ``ValueError`` that names the key."""
        groups = [name.strip() for name in self.groups.split(",") if name.strip()]
        try:
            intervals = [int(number) for number in self.intervals.split(",")]
        except ValueError:
            raise ValueError(
                f"h-fl.intervals = {self.intervals!r}: must be whole numbers separated by commas, one for each of "
                "h-fl.groups"
            ) from None
        try:
            HierarchicalFedAvg(groups=groups, intervals=intervals)
        except ValueError as error:
            raise ValueError(f"h-fl.groups = {self.groups!r}, h-fl.intervals = {self.intervals!r}: {error}") from None
        return groups, intervals


class HFl(Method):
    """A model per cluster on any number of tiers; nodes are evaluated on the global model, too."""

    name = "h-fl"
    summary = "hierarchical FL: a model for each cluster of nodes, averaged every few rounds"
    citation = "Dutto et al., Collaborative Visual Place Recognition through Federated Learning, 2024, Section 4.4"
    good_for = "known groups: cities, robot types"
    Options = HFlOptions
    Strategy = HierarchicalFedAvg
    covered_by_local_noise = True

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        groups, intervals = self.options.tiers()
        optimizer = partial(parts.optimizer, self.options.optimizer, self.options.learning_rate)
        changes = {}
        if self.options.cohort:
            changes["sampler"] = FixedPerCluster(CLUSTER, self.options.cohort, parts.run.seed)
        return parts.build(
            self.Strategy,
            groups=groups,
            intervals=intervals,
            cluster_optimizers=[optimizer] * len(groups),
            cluster_weights=self.options.weights,
            max_weight=self.options.max_weight,
            evaluate_shared=True,
            **changes,
        )

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        try:
            self.options.tiers()
        except ValueError as error:
            yield {"methods"}, str(error)
        if self.options.cohort:
            yield from own_draws(run, f"h-fl.cohort = {self.options.cohort}, which draws nodes by cluster")

    def local_parts(self) -> Sequence[LocalPart]:
        return [SharedEvaluation()]
