"""HierarchicalFedAvg: a model per cluster of nodes; clusters are averaged every few rounds.

Dutto et al., Collaborative Visual Place Recognition through Federated Learning, section 3.2 (H-FL); Liu et al.,
Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020 (https://arxiv.org/abs/1905.06641), Algorithm 1.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from logging import INFO
from typing import Any, ClassVar, get_args

from flwr.app import ConfigRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from .. import wire
from ..aggregation.mean import Aggregate
from ..arrays import Arrays, to_record
from ..base import BaseStrategy
from ..nodes.profiles import Profile, check_group
from ..optimizers import SGD
from ..replies import Reply
from ..rounds.records import RoundStep
from .tiers import ClusterPath, ClusterWeights, OptimizerFactory, Tiers

#: The kind of group that names a node's cluster, in the profiles that samplers and reports see.
CLUSTER = "cluster"


class HierarchicalFedAvg(BaseStrategy):
    """FedAvg within each cluster; every T rounds the clusters are averaged and continue from the average.

    Clusters are the groups in the nodes' profiles, such as their city; cities may in turn be clusters of a continent,
    and so on. In every round

    1. each node trains and evaluates the model of its cluster;
    2. the model of a cluster takes a step of its server optimizer towards the mean of its nodes' replies;
    3. for each tier whose interval divides the number of the round, finer tiers first, the models of the tier are
       averaged, and the model of the tier above takes a step towards the average. The model of the coarsest averaged
       tier then replaces the models of all clusters below it. Optimizers keep their moments.

    Between these rounds clusters do not exchange anything. The shared result (returned, evaluated by ``evaluate_fn``,
    stored in checkpoints) is the top model; between two averages it is the tier-by-tier average of the current
    clusters, which no node trains.

    A cluster takes part in an average if it had a usable reply since the last one. A cluster that lost all its nodes
    therefore contributes once more and afterwards only receives, so that it does not slow down the others. A new
    cluster starts from the model of the nearest tier above it. Nodes without a label form one cluster, labelled ``""``.
    One cluster is FedAvg, bit for bit, for any interval.

    Samplers see an additional group ``cluster``, the labels from the coarsest to the finest joined by ``/``:
    ``sampler=FixedPerCluster("cluster", 5)`` draws five nodes of each cluster, as in the paper. The server's memory is
    a few models per cluster, independent of the number of nodes.

    ``aggregation`` combines the replies within each cluster, so the majority of the replies must be honest in every
    cluster. The averages of clusters remain means: a cluster of Byzantine nodes moves the shared result.

    Parameters
    ----------
    groups : sequence of str
        The kinds of groups that are clusters, the finest first: ``("city",)``, ``("city", "continent")``.
    intervals : sequence of int
        For each of them, the number of rounds between two averages of its clusters into the tier above (the last one's
        into the top model): ≥ 1 and a multiple of the one before it, or 0 for never, then also for all that follow. In
        the paper, 15 is the best of 5 to 25.
    cluster_optimizers : sequence of functions, optional
        For each of them, a function that makes a new server optimizer for a cluster at each call, for example
        ``lambda: Adam(0.01)``; SGD with learning rate 1 by default. ``server_optimizer`` is that of the top model.
    cluster_weights : "equal" or "replies"
        Weights of clusters in the average above them: "equal" weights all alike (FedVPR), "replies" by the total weight
        of their replies since the last average (Liu et al.; with intervals of 1 this is FedAvg, up to rounding).
    max_weight : float
        In (0, 1], the largest share of a cluster in the average above it, so that a cluster that one node has made up,
        or that alone has replied, cannot take over. What is cut off goes to the other clusters; what is left over
        because all of them are at the cap goes to the present model above. 1, the default, is no cap.
    evaluate_shared : bool
        Whether nodes also evaluate the shared result, which they get in the record ``hierarchical.shared``. They report
        its metrics under names that begin with ``shared.``.
    **base
        As in :class:`BaseStrategy`.

    Raises
    ------
    ValueError
        A parameter is out of range, or the lengths of ``groups``, ``intervals`` and ``cluster_optimizers`` differ.
    """

    privacy_gap: ClassVar[str] = (
        "its clusters exist only where nodes reply, so a node alone in its cluster decides whether the cluster counts"
    )
    compression_gap: ClassVar[str] = "nodes start from the models of their clusters, not from the shared one"
    kept: ClassVar[tuple[str, ...]] = ("tiers",)

    def __init__(
        self,
        *,
        groups: Sequence[str],
        intervals: Sequence[int],
        cluster_optimizers: Sequence[OptimizerFactory] | None = None,
        cluster_weights: ClusterWeights = "equal",
        max_weight: float = 1.0,
        evaluate_shared: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.metric_means |= {wire.SHARED_METRICS_PREFIX + name: rule for name, rule in self.metric_means.items()}
        self.evaluate_shared = evaluate_shared
        factories = cluster_optimizers if cluster_optimizers is not None else [SGD for _ in groups]
        _check(groups, intervals, factories)
        if cluster_weights not in get_args(ClusterWeights):
            raise ValueError(f"cluster_weights = {cluster_weights!r}: must be 'equal' or 'replies'")
        if not 0 < max_weight <= 1:
            raise ValueError(f"max_weight = {max_weight!r}: must be above 0 and at most 1 (1 = no cap)")
        self.groups = tuple(groups)
        tops = (self.server_optimizer, self.integers, cluster_weights, max_weight, self.buffers)
        self.tiers = Tiers(groups[::-1], intervals[::-1], factories[::-1], *tops)
        self._aggregates: dict[ClusterPath, Aggregate] = {}
        self._info: dict[str, Any] = {}

    def summary(self) -> None:
        """Log the parts of this strategy."""
        tiers = reversed(list(zip(self.tiers.names, self.tiers.intervals, strict=True)))
        intervals = (f"{name} every {interval} rounds" if interval else f"{name} never" for name, interval in tiers)
        log(INFO, "\t├── clusters averaged: %s", ", ".join(intervals))
        super().summary()

    def cluster_of(self, profile: Profile) -> ClusterPath:
        """The labels of a node's cluster, the coarsest first; ``()`` for a node without a cluster."""
        return tuple(profile.groups.get(group, "") for group in reversed(self.groups))

    def cluster_models(self) -> dict[str, Arrays]:
        """The current model of each cluster of nodes by its label. Do not change them."""
        return {"/".join(path): self.tiers.model(path) for path in self.tiers.leaves()}

    def check_labels(self, profiles: Sequence[Profile]) -> None:
        """Check that for each of the groups at least one node has a label.

        Raises
        ------
        ValueError
            No node has a label for one of the groups.
        """
        for group in self.groups:
            check_group(profiles, group, unlisted=CLUSTER)

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        """As in :class:`BaseStrategy`.

        Raises
        ------
        ValueError
            There are no clusters yet, and no node has a label for one of the groups.
        """
        self._aggregates = {}
        if not self.tiers.initialized:
            self.tiers.initialize(arrays)
        if not self.tiers.leaves() and (nodes := self.profiles(grid)):
            self.check_labels(nodes)

    def label(self, profile: Profile) -> Profile:
        return replace(profile, groups={**profile.groups, CLUSTER: "/".join(self.cluster_of(profile))})

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "evaluate" and self.evaluate_shared:
            content[wire.HIERARCHICAL_SHARED] = content[wire.ARRAYS]
        path = self.cluster_of(profile)
        if path and self.tiers.initialized:
            model = self.tiers.model(path)
            # Clusters that share a model share its record.
            content[wire.ARRAYS] = self.record_once(id(model), partial(to_record, model))

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        path = self.cluster_of(reply.profile)
        if path and path not in self._aggregates:
            self._aggregates[path] = self.new_aggregate("/".join(path))
        (self._aggregates[path] if path else aggregate).add(reply.arrays, reply.weight)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        replies = {"/".join(path): cluster.count for path, cluster in sorted(self._aggregates.items())}
        for path in sorted(self._aggregates):
            self.tiers.step(path, self._aggregates.pop(path))
        self._info = {"replies": replies, "averaged": self.tiers.synchronise(server_round)}
        return self.tiers.average()

    def round_info(self) -> dict[str, Any]:
        """Number of replies per cluster, and the groups whose clusters were averaged, the coarsest first."""
        return self._info


def _check(groups: Sequence[str], intervals: Sequence[int], factories: Sequence[OptimizerFactory]) -> None:
    if isinstance(groups, str) or not groups or len(set(groups)) < len(groups):
        raise ValueError(f"groups = {groups!r}: must be a list of distinct kinds of groups, the finest first")
    if not len(groups) == len(intervals) == len(factories):
        raise ValueError(
            f"{len(groups)} groups, {len(intervals)} intervals, {len(factories)} cluster_optimizers: "
            "there must be one for each group"
        )
    for finer, coarser in zip([1, *intervals], intervals, strict=False):
        fits = coarser % finer == 0 if finer else coarser == 0
        if isinstance(coarser, bool) or not isinstance(coarser, int) or coarser < 0 or not fits:
            raise ValueError(
                f"intervals = {list(intervals)}: must be integers of at least 1, each a multiple of the one before it, "
                "or 0 (never) from some tier on"
            )
    for group, factory in zip(groups, factories, strict=True):
        if not callable(factory) or factory() is factory():
            raise ValueError(f"cluster_optimizers of {group!r}: must be a function that makes a new optimizer")
