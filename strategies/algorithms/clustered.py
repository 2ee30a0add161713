"""ClusteredFedAvg: clusters of similar nodes, found during training.

Briggs, Fan and Andras, Federated learning with hierarchical clustering of local updates, IJCNN 2020
(https://arxiv.org/abs/2004.11791): a few rounds of FedAvg, then agglomerative clustering of the updates, then FedAvg
in each cluster. Sattler et al., Clustered Federated Learning, 2020 (https://arxiv.org/abs/1910.01991): nodes with
different data distributions have updates of different directions. A :class:`Similarity` compares nodes by a short
vector of each, whose length does not depend on the size of the model.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from logging import INFO
from math import isfinite
from typing import Any, ClassVar, Literal, get_args
from zlib import crc32

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from ..aggregation import Aggregate
from ..arrays import Arrays, select
from ..checks import require_integer, require_one_of
from ..optimizers import SGD
from ..profiles import Profile
from ..replies import Reply
from .h_fl import ClusterPath, HierarchicalFedAvg, OptimizerFactory

Vector = NDArray[np.float64]
_CHUNK = 1 << 16


class Similarity(ABC):
    """Maps nodes to float64 vectors of equal length; similar nodes have a small Euclidean distance."""

    @abstractmethod
    def of_profile(self, profile: Profile) -> Vector | None:
        """The vector of a node that has not trained yet; ``None`` if its profile does not determine one."""

    @abstractmethod
    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        """The vector of a node that received ``before`` and returned ``after``, with the same names and shapes.

        A strategy passes the parameters alone, without buffers, integer and boolean arrays.
        """


@dataclass(frozen=True)
class UpdateSketch(Similarity):
    """The direction of a node's latest update, hashed to a vector of fixed length.

    Feature hashing (Weinberger et al., ICML 2009, https://arxiv.org/abs/0902.2206): every parameter is added, with a
    random sign, to one of ``dimension`` sums, and the sums are scaled to length 1. For updates scaled to length 1, the
    inner product of two sketches has the cosine of the updates as its expectation and a standard deviation of about
    dimension^(−1/2); the squared distance is 2 (1 − cosine). An update of zero gives the zero vector. The hash depends
    only on seed, name and position and is not stored: memory is ``dimension`` numbers per node.

    Parameters
    ----------
    dimension : int
        ≥ 1. 256 distinguishes cosines that differ by about 0.2.
    seed : int
        ≥ 0.
    parameters : sequence of str
        Glob patterns. Only parameters that match one are compared, for example those of the last layer.
    """

    dimension: int = 256
    seed: int = 0
    parameters: Sequence[str] = ("*",)

    def __post_init__(self) -> None:
        require_integer("dimension", self.dimension, least=1)
        require_integer("seed", self.seed, least=0)
        if isinstance(self.parameters, str):
            raise ValueError(f"parameters = {self.parameters!r}: must be a list of patterns")

    def of_profile(self, profile: Profile) -> Vector | None:
        return None

    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        sketch = np.zeros(self.dimension)
        for name in select(before, self.parameters):
            old, new = before[name].ravel(), after[name].ravel()
            generator = np.random.default_rng([self.seed, crc32(name.encode())])
            for start in range(0, old.size, _CHUNK):
                part = slice(start, start + _CHUNK)
                change = new[part].astype(np.float64) - old[part]
                code = generator.integers(2 * self.dimension, size=change.size)
                signed = np.where(code & 1, change, -change)
                sketch += np.bincount(code >> 1, weights=signed, minlength=self.dimension)
        length = float(np.linalg.norm(sketch))
        return sketch / length if length else sketch


@dataclass(frozen=True)
class ProfileFeatures(Similarity):
    """Numbers from the nodes' profiles, such as positions. They are not rescaled, so all should have the same scale.

    Parameters
    ----------
    groups : sequence of str
        The kinds of groups whose labels are numbers, at least one. A node has no vector if one of these labels is
        missing or is not a finite number.
    """

    groups: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.groups, str) or not self.groups:
            raise ValueError(f"groups = {self.groups!r}: must be a list of kinds of groups whose labels are numbers")

    def of_profile(self, profile: Profile) -> Vector | None:
        try:
            values = [float(profile.groups[group]) for group in self.groups]
        except (KeyError, ValueError):  # missing, or not a number
            return None
        return np.array(values) if all(map(isfinite, values)) else None

    def of_update(self, profile: Profile, before: Arrays, after: Arrays) -> Vector | None:
        return self.of_profile(profile)


Linkage = Literal["average", "complete", "single", "ward"]
_FIRST = "0"


class ClusteredFedAvg(HierarchicalFedAvg):
    """FedAvg in one cluster, which is split into clusters of similar nodes after a few rounds.

    At the end of round ``first`` and every ``every`` rounds after it, agglomerative clustering (SciPy) groups all nodes
    that have a feature vector. The model of a new cluster starts from the mean of its nodes' models. A new cluster
    keeps the name and the optimizer of the current cluster that most of its nodes come from; larger clusters choose
    first. Between these rounds nodes keep their cluster. A node that joins later is assigned to the cluster with the
    nearest mean vector. If its vector has to be computed from an update, the node first trains the shared result, and
    that reply enters no cluster. The same holds for nodes that never get a vector.

    Everything else is as in :class:`HierarchicalFedAvg`: each node trains and evaluates the model of its cluster, the
    shared result is the average of the clusters, and samplers see the group ``cluster``. One cluster is FedAvg, bit for
    bit. In addition to the models, the server and its checkpoints store one vector per node.

    Parameters
    ----------
    num_clusters : int
        ≥ 1, the largest number of clusters. There are fewer if there are fewer nodes, or nodes with equal vectors.
    threshold : float
        > 0, the linkage distance above which clusters are not merged. Give either ``num_clusters`` or ``threshold``
        and leave the other 0.
    similarity : Similarity
        What to compare: the directions of updates (:class:`UpdateSketch`, the default) or numbers in profiles
        (:class:`ProfileFeatures`).
    linkage : "average", "complete", "single" or "ward"
        How to measure the distance between two clusters.
    first : int
        ≥ 1, the first round at whose end nodes are clustered.
    every : int
        ≥ 0, rounds between two clusterings; 0 clusters once.
    interval : int
        ≥ 0, rounds between two averages of all clusters, from which they continue; 0 never averages them.
    cluster_optimizer : function, optional
        Makes the server optimizer of a cluster; SGD with learning rate 1 by default.
    **base
        ``cluster_weights`` and ``evaluate_shared`` as in :class:`HierarchicalFedAvg`, and the parameters of
        :class:`BaseStrategy`.

    Raises
    ------
    ImportError
        SciPy is missing.
    ValueError
        A parameter is out of range.
    """

    privacy_gap: ClassVar[str] = "it also compares single updates, and the cluster of a node depends on its update"
    secrecy_gap: ClassVar[str | None] = "it compares single updates, by which it finds the clusters"
    compression_gap: ClassVar[str] = (
        "nodes are clustered by their updates, and start from the models of their clusters, not from the shared one"
    )
    kept: ClassVar[tuple[str, ...]] = ("labels", "_vectors", "_centres")
    robustness_gap: ClassVar[str] = (
        "nodes with similar updates form a cluster, also Byzantine ones, whose model enters the average of the clusters"
    )

    def __init__(
        self,
        *,
        num_clusters: int = 0,
        threshold: float = 0.0,
        similarity: Similarity | None = None,
        linkage: Linkage = "average",
        first: int = 1,
        every: int = 0,
        interval: int = 0,
        cluster_optimizer: OptimizerFactory = SGD,
        **base: Any,
    ) -> None:
        self.similarity = similarity or UpdateSketch()
        self.needs_profiles = isinstance(self.similarity, ProfileFeatures)
        super().__init__(groups=("cluster",), intervals=(interval,), cluster_optimizers=(cluster_optimizer,), **base)
        for name, value, least in (("num_clusters", num_clusters, 0), ("first", first, 1), ("every", every, 0)):
            require_integer(name, value, least=least)
        if not 0 <= threshold < np.inf or (num_clusters > 0) == (threshold > 0):
            raise ValueError(f"num_clusters = {num_clusters}, threshold = {threshold}: set exactly one of them above 0")
        require_one_of("linkage", linkage, get_args(Linkage))
        _scipy_hierarchy()
        self.num_clusters, self.threshold, self.linkage = num_clusters, threshold, linkage
        self.first, self.every = first, every
        self.labels: dict[str, str] = {}
        self._vectors: dict[str, Vector] = {}
        self._centres: dict[str, Vector] = {}

    def cluster_of(self, profile: Profile) -> ClusterPath:
        """The name of a node's cluster; ``()`` if the node has none yet."""
        if len(self._centres) < 2:
            return (next(iter(self._centres), _FIRST),)
        if profile.key in self.labels:
            return (self.labels[profile.key],)
        vector = self.similarity.of_profile(profile)
        return () if vector is None else (self._nearest(vector),)

    def check_labels(self, profiles: Sequence[Profile]) -> None:
        """Accept nodes without labels: clusters are found from vectors."""

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        path = self.cluster_of(reply.profile)
        sent = self.tiers.model(path) if path else self._current
        before, after = self.buffers.parameters(sent), self.buffers.parameters(reply.arrays)
        vector = self.similarity.of_update(reply.profile, before, after)
        if vector is not None:
            self._vectors[reply.profile.key] = vector

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        shared = super().close_round(server_round, current, aggregate)
        for key in sorted(self._vectors.keys() - self.labels.keys()):
            self.labels[key] = self._nearest(self._vectors[key]) if self._centres else _FIRST
        due = server_round == self.first or (
            self.every > 0 and server_round > self.first and (server_round - self.first) % self.every == 0
        )
        if due:
            self._cluster()
            shared = self.tiers.average()
        self._info = {**self._info, "nodes": dict(sorted(Counter(self.labels.values()).items())), "clustered": due}
        return shared

    def _cluster(self) -> None:
        for profile in self.registry.known.values():
            vector = self.similarity.of_profile(profile)
            if vector is not None:
                self._vectors[profile.key] = vector
        if not self._vectors:
            log(INFO, "no node has a vector under %s: all nodes stay in one cluster", self.similarity)
            return
        keys = sorted(self._vectors)
        vectors = np.array([self._vectors[key] for key in keys])
        groups = [[keys[index] for index in members] for members in self._split(vectors)]
        named = self._name_clusters(groups)
        self.tiers.regroup(
            {
                (name,): {(label,): float(count) for label, count in Counter(map(self._label, members)).items()}
                for name, members in named.items()
            }
        )
        self.labels = {key: name for name, members in named.items() for key in members}
        self._centres = {name: np.mean([self._vectors[key] for key in m], axis=0) for name, m in named.items()}
        log(INFO, "%s clusters of %s nodes: %s", len(named), len(keys), {name: len(m) for name, m in named.items()})

    def _split(self, vectors: NDArray[np.float64]) -> list[list[int]]:
        if len(vectors) == 1:
            return [[0]]
        hierarchy = _scipy_hierarchy()
        tree = hierarchy.linkage(vectors, method=self.linkage)
        limit, criterion = (self.num_clusters, "maxclust") if self.num_clusters else (self.threshold, "distance")
        clusters = hierarchy.fcluster(tree, limit, criterion=criterion)
        members: dict[int, list[int]] = {}
        for index, cluster in enumerate(clusters.tolist()):
            members.setdefault(cluster, []).append(index)
        return sorted(members.values(), key=lambda indices: (-len(indices), indices))

    def _name_clusters(self, groups: Sequence[Sequence[str]]) -> dict[str, Sequence[str]]:
        named: dict[str, Sequence[str]] = {}
        free = (str(number) for number in range(2 * len(groups) + len(self._centres)))
        taken = {_FIRST, *self._centres}
        for members in groups:
            counts = Counter(map(self._label, members))
            before = sorted(counts, key=lambda label: (-counts[label], label))
            kept = next((label for label in before if label not in named), None)
            named[kept or next(name for name in free if name not in taken)] = members
        return dict(sorted(named.items()))

    def _label(self, key: str) -> str:
        """The current cluster of a node with a vector; the node need not have trained yet."""
        if key in self.labels:
            return self.labels[key]
        return self._nearest(self._vectors[key]) if self._centres else _FIRST

    def _nearest(self, vector: Vector) -> str:
        return min(self._centres, key=lambda name: float(np.linalg.norm(self._centres[name] - vector)))


def _scipy_hierarchy() -> Any:
    try:
        from scipy.cluster import hierarchy
    except ImportError as error:
        raise ImportError("ClusteredFedAvg needs SciPy for clustering: pip install scipy") from error
    return hierarchy
