"""HierarchicalFedAvg: a model for each cluster of nodes, averaged with the others every few rounds.

Dutto et al., Collaborative Visual Place Recognition through Federated Learning, section 3.2 (H-FL); Liu et al.,
Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020 (https://arxiv.org/abs/1905.06641), Algorithm 1.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import INFO
from typing import Any, get_args

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from .aggregation import StreamingMean
from .arrays import Arrays, to_record
from .base import BaseStrategy
from .optimizers import SGD
from .profiles import Profile
from .replies import Reply
from .round_messages import ExtraRecords
from .tiers import ClusterPath, ClusterWeights, OptimizerFactory, Tiers

CLUSTER = "cluster"
SHARED = "hierarchical.shared"
SHARED_METRICS = "shared."
_PREFIX = "tiers."


class HierarchicalFedAvg(BaseStrategy):
    """FedAvg within each cluster; every T rounds the clusters are averaged and all begin again from the average.

    Clusters are the groups that nodes name in their profiles, such as their city; cities may be clusters of a
    continent, and so on. In every round

    1. a node trains the model of its cluster, and evaluates it too;
    2. a cluster's model takes a step of its server optimizer towards the mean of its own nodes' replies;
    3. where the interval of a tier divides the round's number, the tier's models are averaged into the tier above,
       whose model takes a step towards the average; finer tiers come first. The model of the coarsest tier that was
       reached replaces those of all clusters below it. Optimizers keep their moments.

    Between these rounds clusters do not touch. The shared result (returned, evaluated by ``evaluate_fn``, kept in
    checkpoints) is the top model; between its rounds it is what a plain average, tier by tier, would make of the
    clusters now, which nobody trains on.

    A cluster takes part in an average if it had a usable reply since the last one: one that lost all its nodes keeps
    its model, gives it once more, and from then on only receives, so that it does not hold the others back. A cluster
    not seen before begins from the model of the nearest tier above it. Nodes without a label form a cluster
    of their own, labelled ``""``. One cluster is FedAvg, bit for bit, whatever the interval.

    To samplers the profiles have one more group, ``cluster``, the labels from the coarsest to the finest joined
    by ``/``: ``sampler=FixedPerCluster("cluster", 5)`` draws five nodes of each cluster, as in the paper. The server's
    memory is a few models per cluster, whatever the number of nodes.

    Parameters
    ----------
    groups : sequence of str
        The kinds of groups that are clusters, the finest first: ``("city",)``, ``("city", "continent")``.
    intervals : sequence of int
        For each of them, every how many rounds its clusters are averaged into the tier above (the last one's into the
        top model): ≥ 1 and a multiple of the one before it, or 0 for never, then also for all that follow. The paper
        finds 15 the best of 5 to 25.
    cluster_optimizers : sequence of functions, optional
        For each of them, makes the server optimizer of a cluster, a new one at each call: ``lambda: Adam(0.01)``. By
        default SGD with learning rate 1. That of the top model is ``server_optimizer``.
    cluster_weights : "equal" or "replies"
        Whether clusters count alike in the average above them (FedVPR), or by the weights of all
        their replies since the last one (Liu et al.; with intervals of 1 this is FedAvg, to rounding).
    evaluate_shared : bool
        Whether nodes that evaluate get the shared result too, in the record ``hierarchical.shared``, to tell its
        metrics under names that begin with ``shared.``: what a cluster gains by a model of its own.
    **base
        As in :class:`BaseStrategy`.
    """

    def __init__(
        self,
        *,
        groups: Sequence[str],
        intervals: Sequence[int],
        cluster_optimizers: Sequence[OptimizerFactory] | None = None,
        cluster_weights: ClusterWeights = "equal",
        evaluate_shared: bool = False,
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.metric_means |= {SHARED_METRICS + name: rule for name, rule in self.metric_means.items()}
        self.evaluate_shared = evaluate_shared
        factories = cluster_optimizers if cluster_optimizers is not None else [SGD for _ in groups]
        _check(groups, intervals, factories)
        if cluster_weights not in get_args(ClusterWeights):
            raise ValueError(f"cluster_weights = {cluster_weights!r}: must be 'equal' or 'replies'")
        self.groups = tuple(groups)
        self.tiers = Tiers(
            groups[::-1], intervals[::-1], factories[::-1], self.server_optimizer, self.integers, cluster_weights
        )
        self._means: dict[ClusterPath, StreamingMean] = {}
        self._records: dict[int, ArrayRecord] = {}
        self._info: dict[str, Any] = {}
        self._shared_record = ArrayRecord()

    def summary(self) -> None:
        """Log what this strategy is made of."""
        rhythm = (f"{name} every {interval or '∞'} rounds" for name, interval in self._rhythm())
        log(INFO, "\t├── clusters averaged: %s", ", ".join(rhythm))
        super().summary()

    def cluster_of(self, profile: Profile) -> ClusterPath:
        """The labels of a node's cluster, the coarsest first; ``()`` would be a node that belongs to none."""
        return tuple(profile.groups.get(group, "") for group in reversed(self.groups))

    def cluster_models(self) -> dict[str, Arrays]:
        """The present model of each cluster of nodes, by its label; not to be changed."""
        return {"/".join(path): self.tiers.model(path) for path in self.tiers.leaves()}

    def profiles(self, grid: Grid) -> list[Profile]:
        """As in :class:`BaseStrategy`, with the group ``cluster``.

        Raises ``ValueError`` if there are no clusters yet and no node names one of the groups.
        """
        known = super().profiles(grid)
        if known and not self.tiers.leaves():
            self.check_labels(known)
        return known

    def check_labels(self, profiles: Sequence[Profile]) -> None:
        """Raise ``ValueError`` if none of the nodes names one of the groups."""
        for group in self.groups:
            if not any(group in node.groups for node in profiles):
                named = ", ".join(sorted({name for node in profiles for name in node.groups} - {CLUSTER})) or "no group"
                raise ValueError(
                    f"groups has {group!r}, but none of {len(profiles)} nodes names it; they name: {named}"
                )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = super().configure_train(server_round, arrays, config, grid)
        self._records = {}
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._shared_record = self.share(arrays)
        messages = super().configure_evaluate(server_round, arrays, config, grid)
        self._records = {}
        return messages

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        self._means = {}
        if not self.tiers.planted:
            self.tiers.plant(arrays)

    def label(self, profile: Profile) -> Profile:
        return replace(profile, groups={**profile.groups, CLUSTER: "/".join(self.cluster_of(profile))})

    def evaluate_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        return {SHARED: self._shared_record} if self.evaluate_shared else {}

    def arrays_for(self, profile: Profile, shared: ArrayRecord) -> ArrayRecord:
        path = self.cluster_of(profile)
        if not (path and self.tiers.planted):
            return shared
        model = self.tiers.model(path)
        if id(model) not in self._records:  # one record for all nodes, and all clusters, that share a model
            self._records[id(model)] = to_record(model)
        return self._records[id(model)]

    def sent_to(self, profile: Profile) -> Arrays:
        path = self.cluster_of(profile)
        return self.tiers.model(path) if path else self._current

    def mean_for(self, reply: Reply, mean: StreamingMean) -> StreamingMean:
        path = self.cluster_of(reply.profile)
        if path and path not in self._means:
            self._means[path] = self.new_mean("/".join(path))
        return self._means[path] if path else mean

    def close_round(self, server_round: int, current: Arrays, mean: Arrays) -> Arrays:
        replies = {"/".join(path): cluster.count for path, cluster in sorted(self._means.items())}
        for path in sorted(self._means):
            self.tiers.step(path, self._means.pop(path))
        self._info = {"replies": replies, "averaged": self.tiers.synchronise(server_round)}
        return self.tiers.average()

    def state(self) -> Arrays:
        return {**super().state(), **{_PREFIX + name: array for name, array in self.tiers.state().items()}}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self.tiers.load_state(
            {name.removeprefix(_PREFIX): array for name, array in state.items() if name.startswith(_PREFIX)}
        )

    def round_info(self) -> dict[str, Any]:
        """Replies of the round by cluster, and the groups whose clusters were averaged, the coarsest first."""
        return self._info

    def _rhythm(self) -> list[tuple[str, int]]:
        return list(zip(self.tiers.names, self.tiers.intervals, strict=True))[::-1]


def _check(groups: Sequence[str], intervals: Sequence[int], factories: Sequence[OptimizerFactory]) -> None:
    if isinstance(groups, str) or not groups or len(set(groups)) < len(groups):
        raise ValueError(f"groups = {groups!r}: must be a list of different kinds of groups, the finest first")
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
            raise ValueError(f"cluster_optimizers: that of {group!r} must make a new optimizer at each call")
