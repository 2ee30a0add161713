"""HierarchicalFedAvg: a model per cluster of nodes; clusters are averaged every few rounds.

The clusters are a tree: leaves are clusters of nodes, inner vertices are clusters of clusters, the root is the top
model.
Dutto et al., Collaborative Visual Place Recognition through Federated Learning, section 3.2 (H-FL); Liu et al.,
Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020 (https://arxiv.org/abs/1905.06641), Algorithm 1.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO
from typing import Any, ClassVar, Literal, get_args

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from .. import wire
from ..aggregation import Aggregate, IntegerPolicy, StreamingMean
from ..arrays import Arrays, Buffers, check_alike, to_record
from ..base import BaseStrategy
from ..checks import require_one_of
from ..optimizers import SGD, ServerOptimizer
from ..profiles import Profile, check_group
from ..records import RoundStep, flat, nested
from ..replies import Reply

ClusterPath = tuple[str, ...]
"""Labels from the coarsest group to the finest; () is the root."""
ClusterWeights = Literal["equal", "replies"]
OptimizerFactory = Callable[[], ServerOptimizer]


@dataclass
class _Cluster:
    model: Arrays
    optimizer: ServerOptimizer
    weight: float = 0.0  # sum over the replies below it since its last average into the parent


@dataclass
class Tiers:
    """The models of all clusters. Arrays are never changed in index, so clusters can share one model.

    Parameters
    ----------
    names : sequence of str
        The tiers of clusters, the coarsest first. A leaf has a path with one label per tier.
    intervals : sequence of int
        For each tier, the number of rounds between two averages of its clusters into the tier above; 0 never averages.
    optimizers : sequence of functions
        For each tier, a function that makes the server optimizer of a cluster.
    top_optimizer : ServerOptimizer
        The server optimizer of the top model. :meth:`state` does not include its state.
    integers : "newest" or "round"
        How to combine integer and boolean arrays; see :class:`~fedapps.strategies.aggregation.StreamingMean`.
    cluster_weights : "equal" or "replies"
    max_weight : float
        See :class:`~fedapps.strategies.algorithms.h_fl.HierarchicalFedAvg`.
    buffers : Buffers
        Which arrays take no step of an optimizer.
    """

    names: Sequence[str]
    intervals: Sequence[int]
    optimizers: Sequence[OptimizerFactory]
    top_optimizer: ServerOptimizer
    integers: IntegerPolicy = "newest"
    cluster_weights: ClusterWeights = "equal"
    max_weight: float = 1.0
    buffers: Buffers = field(default_factory=Buffers)
    _clusters: dict[ClusterPath, _Cluster] = field(default_factory=dict, init=False, repr=False)

    @property
    def initialized(self) -> bool:
        """Whether there is a top model."""
        return bool(self._clusters)

    def initialize(self, model: Arrays) -> None:
        """Start from a top model, without clusters."""
        self._clusters = {(): _Cluster(model, self.top_optimizer)}

    def leaves(self) -> list[ClusterPath]:
        """Paths of the clusters of nodes, sorted."""
        return sorted(path for path in self._clusters if len(path) == len(self.names))

    def model(self, path: ClusterPath) -> Arrays:
        """The model of a cluster, or of its nearest ancestor that exists. Do not change it."""
        while path not in self._clusters:
            path = path[:-1]
        return self._clusters[path].model

    def step(self, leaf: ClusterPath, aggregate: Aggregate) -> None:
        """Update the model of a cluster with the aggregate of its nodes' replies; create the cluster if it is new."""
        for depth in range(1, len(leaf) + 1):
            path = leaf[:depth]
            if path not in self._clusters:
                self._clusters[path] = _Cluster(self.model(path), self.optimizers[depth - 1]())
            self._clusters[path].weight += aggregate.total_weight
        cluster = self._clusters[leaf]
        cluster.model = cluster.optimizer.step(cluster.model, aggregate.result(), self.buffers)

    def synchronise(self, server_round: int) -> list[str]:
        """Average all tiers whose interval divides the round, the finest first, and copy the coarsest result down.

        Clusters without a reply since their last average are left out; a parent whose clusters are all left out keeps
        its model.

        Returns
        -------
        list of str
            Names of the tiers that were averaged, the coarsest first.
        """
        due = [depth for depth, interval in enumerate(self.intervals) if interval and server_round % interval == 0]
        for depth in reversed(due):
            for path, children in self._children_by_parent(depth):
                parent, active = self._clusters[path], [child for child in children if child.weight]
                if active:
                    models = [child.model for child in active]
                    mean = self._mean(parent.model, active, models)
                    parent.model = parent.optimizer.step(parent.model, mean, self.buffers)
                for child in active:
                    child.weight = 0.0
        if due:
            for path, cluster in self._clusters.items():
                cluster.model = self._clusters[path[: due[0]]].model
        return [self.names[depth] for depth in due]

    def average(self) -> Arrays:
        """The top model, or the tier-by-tier average of the clusters with replies since their last average."""
        averages: dict[ClusterPath, Arrays] = {}
        for depth in reversed(range(len(self.names))):
            for path, children in self._children_by_parent(depth):
                labelled = zip(self._labels(path), children, strict=True)
                active = {label: child for label, child in labelled if child.weight}
                if active:
                    models = [averages.pop((*path, label), child.model) for label, child in active.items()]
                    averages[path] = self._mean(self._clusters[path].model, list(active.values()), models)
        return averages.get((), self._clusters[()].model)

    def regroup(self, sources: Mapping[ClusterPath, Mapping[ClusterPath, float]]) -> None:
        """Replace the leaves of a tree with one tier by weighted means of the current leaves.

        Parameters
        ----------
        sources : mapping of paths to mappings of paths to float
            For each new leaf, the weights (> 0) of the current leaves in its mean. A new leaf with the path of a
            current one keeps that leaf's optimizer. Weights of replies are divided in the same proportions.
        """
        old = self._clusters
        self._clusters = {(): old[()]}
        for leaf, shares in sources.items():
            mean, weight = StreamingMean(self.integers), 0.0
            for path, share in sorted(shares.items()):
                before = old.get(path) or old[()]  # no node of the leaf has replied
                mean.add(before.model, share)
                weight += before.weight * share / sum(other.get(path, 0.0) for other in sources.values())
            optimizer = old[leaf].optimizer if leaf in old else self.optimizers[0]()
            self._clusters[leaf] = _Cluster(mean.result(), optimizer, weight)

    def state(self) -> Arrays:
        """Arrays for a checkpoint, restored by :meth:`load_state`; a model that clusters share is stored once."""
        rows = [
            [path, cluster.model, cluster.weight, cluster.optimizer.state() if path else {}]
            for path, cluster in sorted(self._clusters.items())
        ]
        return flat({"tiers": self.names, "clusters": rows})

    def load_state(self, state: Arrays) -> None:
        """Restore a state that :meth:`state` returned.

        Raises
        ------
        ValueError
            The state belongs to other tiers.
        """
        values = nested(state)
        if (tiers := values.get("tiers", [])) != list(self.names):
            raise ValueError(f"the saved clusters have the tiers {tiers}, but this run has {list(self.names)}")
        clusters: dict[ClusterPath, _Cluster] = {}
        models: dict[tuple[int, ...], Arrays] = {}  # by the arrays in them
        for labels, model, weight, moments in values["clusters"]:
            check_alike(values["clusters"][0][1], model)
            optimizer = self.optimizers[len(labels) - 1]() if labels else self.top_optimizer
            if labels:
                optimizer.load_state(moments)
            shared = models.setdefault(tuple(map(id, model.values())), model)
            clusters[tuple(labels)] = _Cluster(shared, optimizer, weight)
        self._clusters = clusters

    def _mean(self, parent: Arrays, clusters: Sequence[_Cluster], models: Sequence[Arrays]) -> Arrays:
        """The mean of the models of clusters; what the cap on their weights leaves over goes to the model above."""
        equal = self.cluster_weights == "equal"
        weights, rest = capped([1.0 if equal else cluster.weight for cluster in clusters], self.max_weight)
        mean = StreamingMean(self.integers)
        if rest:
            mean.add(parent, rest)
        for model, weight in zip(models, weights, strict=True):
            mean.add(model, weight)
        return mean.result()

    def _children_by_parent(self, depth: int) -> Iterator[tuple[ClusterPath, list[_Cluster]]]:
        for path in sorted(path for path in self._clusters if len(path) == depth):
            yield path, [self._clusters[(*path, label)] for label in self._labels(path)]

    def _labels(self, path: ClusterPath) -> list[str]:
        below = len(path) + 1
        return sorted(p[-1] for p in self._clusters if len(p) == below and p[:-1] == path)


def capped(weights: Sequence[float], cap: float) -> tuple[list[float], float]:
    """Limit the share of each weight in a sum, and give what is cut off to the others in proportion to their weights.

    If there are fewer than 1 / ``cap`` weights, all of them have the share ``cap``, and a rest is left over.

    Parameters
    ----------
    weights : sequence of float
        > 0, at least one.
    cap : float
        In (0, 1], the largest share.

    Returns
    -------
    list of float, float
        The limited weights and the rest, in [0, 1). If no share is above the cap, the weights are returned as they are,
        with the rest 0; otherwise weights and rest are shares whose sum is 1.
    """
    if max(weights) <= cap * sum(weights):
        return list(weights), 0.0
    at_cap: set[int] = set()
    while True:
        below = [index for index in range(len(weights)) if index not in at_cap]
        left = 1.0 - cap * len(at_cap)
        scale = left / sum(weights[index] for index in below) if below and left > 0 else 0.0
        above = {index for index in below if weights[index] * scale > cap}
        if not above:
            break
        at_cap |= above
    if not below or left <= 0:
        return [cap] * len(weights), max(0.0, 1.0 - cap * len(weights))
    return [cap if index in at_cap else weight * scale for index, weight in enumerate(weights)], 0.0


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

    Under ``secure_aggregation`` the server gets the sum of each cluster. A cluster of fewer than three nodes, or that
    loses too many, is left out of the round.

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
    secrecy_gap: ClassVar[str | None] = ""
    compression_gap: ClassVar[str] = "nodes start from the models of their clusters, not from the shared one"
    kept: ClassVar[tuple[str, ...]] = ("tiers",)
    needs_profiles: bool = True

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
        require_one_of("cluster_weights", cluster_weights, get_args(ClusterWeights))
        if not 0 < max_weight <= 1:
            raise ValueError(f"max_weight = {max_weight!r}: must be above 0 and at most 1 (1 = no cap)")
        self.groups = tuple(groups)
        tops = (self.server_optimizer, self.integers, cluster_weights, max_weight, self.buffers)
        self.tiers = Tiers(groups[::-1], intervals[::-1], factories[::-1], *tops)
        self._aggregates: dict[ClusterPath, Aggregate] = {}
        self._replies: Counter[str] = Counter()
        self._info: dict[str, Any] = {}

    def summary(self) -> None:
        """Log the parts of this strategy."""
        tiers = reversed(list(zip(self.tiers.names, self.tiers.intervals, strict=True)))
        intervals = (f"{name} models {f'every {interval} rounds' if interval else 'never'}" for name, interval in tiers)
        log(INFO, "\t├── averaged with each other: %s", ", ".join(intervals))
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
        self._aggregates, self._replies = {}, Counter()
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

    def cohorts(self, messages: Sequence[Message]) -> Iterator[tuple[Profile, Sequence[Message]]]:
        """The nodes of each cluster."""
        of_cluster: dict[ClusterPath, list[tuple[Profile, Message]]] = {}
        for message in messages:
            node = self._known(message.metadata.dst_node_id)
            of_cluster.setdefault(self.cluster_of(node), []).append((node, message))
        for path, pairs in sorted(of_cluster.items()):
            yield replace(pairs[0][0], key="/".join(path)), [message for _, message in pairs]

    def size_refusal_reason(self, reply: Reply, start: Arrays) -> str | None:
        """As in :class:`BaseStrategy`, from the model of the node's cluster."""
        path = self.cluster_of(reply.profile)
        return super().size_refusal_reason(reply, self.tiers.model(path) if path else start)

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        if path := self.cluster_of(reply.profile):
            label = "/".join(path)
            self._replies[label] += reply.nodes
            if path not in self._aggregates:
                self._aggregates[path] = self.new_aggregate(label)
            aggregate = self._aggregates[path]
        aggregate.add(reply.arrays, reply.weight)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        for path in sorted(self._aggregates):
            self.tiers.step(path, self._aggregates.pop(path))
        self._info = {"replies": dict(sorted(self._replies.items())), "averaged": self.tiers.synchronise(server_round)}
        return self.tiers.average()

    def round_info(self) -> dict[str, Any]:
        """Number of replies per cluster, and the groups whose clusters were averaged, the coarsest first.

        Of clusters that are found, also the number of their nodes, and whether the round has found them.
        """
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
