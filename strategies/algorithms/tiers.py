"""A tree of models: leaves are clusters of nodes, inner vertices are clusters of clusters, the root is the top model.

Liu et al., Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020 (https://arxiv.org/abs/1905.06641), Algorithm 1,
for any number of tiers and with a server optimizer in every cluster. This module does not depend on nodes or messages.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ..aggregation.mean import Aggregate, IntegerPolicy, StreamingMean
from ..arrays import Arrays, Buffers, check_alike
from ..optimizers import ServerOptimizer
from ..rounds.snapshots import under

ClusterPath = tuple[str, ...]
"""Labels from the coarsest group to the finest; () is the root."""
ClusterWeights = Literal["equal", "replies"]
OptimizerFactory = Callable[[], ServerOptimizer]
_FACTS = "facts"


@dataclass
class _Cluster:
    model: Arrays
    optimizer: ServerOptimizer
    weight: float = 0.0  # sum over the replies below it since its last average into the parent


@dataclass
class Tiers:
    """The models of all clusters. Arrays are never changed in place, so clusters can share one model.

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
        How to combine integer and boolean arrays; see :class:`~fedapps.strategies.aggregation.mean.StreamingMean`.
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
        old = {path: cluster for path, cluster in self._clusters.items() if path}
        given = {path: sum(shares.get(path, 0.0) for shares in sources.values()) for path in old}
        self._clusters = {(): self._clusters[()]}
        for leaf, shares in sources.items():
            mean = StreamingMean(self.integers)
            for path, share in sorted(shares.items()):
                mean.add(old[path].model, share)
            optimizer = old[leaf].optimizer if leaf in old else self.optimizers[0]()
            weight = sum(old[path].weight * share / given[path] for path, share in shares.items())
            self._clusters[leaf] = _Cluster(mean.result(), optimizer, weight)

    def state(self) -> Arrays:
        """Arrays for a checkpoint, restored by :meth:`load_state`; a model that clusters share is stored once."""
        paths = sorted(self._clusters)
        models = list({id(self._clusters[path].model): self._clusters[path].model for path in paths}.values())
        places = {id(model): place for place, model in enumerate(models)}
        facts: dict[str, Any] = {
            "tiers": list(self.names),
            "clusters": [(path, places[id(self._clusters[path].model)], self._clusters[path].weight) for path in paths],
        }
        state: Arrays = {_FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8).copy()}
        for place, model in enumerate(models):
            state.update({f"model.{place}.{name}": array for name, array in model.items()})
        for number, path in enumerate(paths):
            if path:
                moments = self._clusters[path].optimizer.state()
                state.update({f"optimizer.{number}.{name}": array for name, array in moments.items()})
        return state

    def load_state(self, state: Arrays) -> None:
        """Restore a state that :meth:`state` returned.

        Raises
        ------
        ValueError
            The state belongs to other tiers.
        """
        facts = json.loads(state[_FACTS].tobytes()) if _FACTS in state else {"tiers": []}
        if facts["tiers"] != list(self.names):
            raise ValueError(f"the saved clusters have the tiers {facts['tiers']}, but this run has {list(self.names)}")
        count = 1 + max((place for _, place, _ in facts["clusters"]), default=-1)
        models = [under(f"model.{place}.", state) for place in range(count)]
        clusters = {}
        for number, (labels, place, weight) in enumerate(facts["clusters"]):
            check_alike(models[0], models[place])
            optimizer = self.optimizers[len(labels) - 1]() if labels else self.top_optimizer
            if labels:
                optimizer.load_state(under(f"optimizer.{number}.", state))
            clusters[tuple(labels)] = _Cluster(models[place], optimizer, weight)
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
        below = [place for place in range(len(weights)) if place not in at_cap]
        left = 1.0 - cap * len(at_cap)
        scale = left / sum(weights[place] for place in below) if below and left > 0 else 0.0
        above = {place for place in below if weights[place] * scale > cap}
        if not above:
            break
        at_cap |= above
    if not below or left <= 0:
        return [cap] * len(weights), max(0.0, 1.0 - cap * len(weights))
    return [cap if place in at_cap else weight * scale for place, weight in enumerate(weights)], 0.0
