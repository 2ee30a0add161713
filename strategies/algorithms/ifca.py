"""The server of IFCA: several models, each the mean of the nodes that chose it.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1 with model averaging,
https://arxiv.org/abs/2006.04088.
"""

from functools import partial
from typing import Any, ClassVar, cast
from zlib import crc32

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays, Buffers, to_record
from ..base import BaseStrategy
from ..checks import require_integer
from ..optimizers import SGD
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply
from ..wire import ARRAYS, IFCA_CHOICE, IFCA_MODEL_PREFIX


class IteratedClusters(BaseStrategy):
    """FedAvg with k models: each node trains the one that it chooses, and a model is the mean of its nodes' replies.

    A TRAIN or EVALUATE message brings the first model as ``arrays`` and the others as the ArrayRecords
    ``ifca.model.1`` to ``ifca.model.<k-1>``, in the same form. A reply brings the number of the trained one, from 0, as
    the metric ``ifca.choice``. A model that no node chose stays as it is. The shared result (returned, evaluated by
    ``evaluate_fn``) is the model that most replies of the last round have trained.

    The first model starts as the initial one, and the others as :func:`drawn`. A single model is FedAvg, bit for bit.

    Parameters
    ----------
    clusters : int
        k ≥ 1.
    spread : float
        In [0, 1], how much the other models differ from the first one at the start.
    seed : int
        ≥ 0, of their draws.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. The server optimizer must have no moments.

    Raises
    ------
    ValueError
        An argument is out of range, the server optimizer has moments, or ``privacy``, ``aggregation`` or
        ``compression`` is set.
    """

    privacy_gap: ClassVar[str] = "a node tells which model fits its data, and its update is the distance from that one"
    robustness_gap: ClassVar[str] = "nodes choose the model that they train, so Byzantine ones can be most of a cluster"
    compression_gap: ClassVar[str] = "nodes start from the model that they choose, not from the shared one"
    kept: ClassVar[tuple[str, ...]] = ("models",)

    def __init__(self, *, clusters: int = 2, spread: float = 1.0, seed: int = 0, **base: Any) -> None:
        super().__init__(**base)
        require_integer("clusters", clusters, least=1)
        require_integer("seed", seed, least=0)
        if not 0 <= spread <= 1:
            raise ValueError(f"spread = {spread}: must be in [0, 1]")
        if clusters > 1 and not isinstance(self.server_optimizer, SGD):
            raise ValueError(
                f"server_optimizer = {self.server_optimizer}: must be SGD, because moments are of one model"
            )
        self.clusters, self.spread, self.seed = clusters, spread, seed
        self.models: list[Arrays] = []
        self._aggregates: dict[int, Aggregate] = {}
        self._replies: dict[str, int] = {}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._aggregates = {}
        if not self.models:
            others = range(1, self.clusters)
            self.models = [arrays, *(drawn(arrays, [self.seed, j], self.spread, self.buffers) for j in others)]

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        for index in range(len(self.models)):
            record = self.record_once(index, partial(to_record, self.models[index]))
            content[f"{IFCA_MODEL_PREFIX}{index}" if index else ARRAYS] = record

    def refusal_reason(self, reply: Reply) -> str | None:
        choice = reply.metrics.get(IFCA_CHOICE)
        if choice not in range(self.clusters):
            return f"metric {IFCA_CHOICE} is {choice}: a client returns the number of a model, 0 to {self.clusters - 1}"
        return None

    def size_refusal_reason(self, reply: Reply, start: Arrays) -> str | None:
        """As in :class:`BaseStrategy`, from the model that the node has chosen."""
        return super().size_refusal_reason(reply, self.models[_choice(reply)])

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        choice = _choice(reply)
        if choice not in self._aggregates:
            self._aggregates[choice] = self.new_aggregate(f"model {choice}")
        self._aggregates[choice].add(reply.arrays, reply.weight)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        self._replies = {str(index): cluster.count for index, cluster in sorted(self._aggregates.items())}
        if not self._aggregates:
            return current
        largest = max(sorted(self._aggregates), key=lambda index: self._aggregates[index].count)
        for index, cluster in sorted(self._aggregates.items()):
            # Algorithm 1 with model averaging: θ_j is the mean of the replies of the nodes that chose j
            self.models[index] = self.server_optimizer.step(self.models[index], cluster.result(), self.buffers)
        self._aggregates = {}
        return self.models[largest]

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        if len(self.models) != self.clusters:
            raise ValueError(f"the checkpoint has {len(self.models)} models of IFCA, but clusters = {self.clusters}")

    def round_info(self) -> dict[str, Any]:
        """Number of replies per model that nodes chose."""
        return {"ifca": {"replies": self._replies}}


def _choice(reply: Reply) -> int:
    return int(cast(float, reply.metrics[IFCA_CHOICE]))


def drawn(arrays: Arrays, seed: list[int], spread: float, buffers: Buffers) -> Arrays:
    """Another initial model: in each array, √(1 − spread²) of the deviations from its mean, and new ones for the rest.

    Each parameter keeps its mean and its standard deviation in expectation, so what is constant, such as zero biases,
    stays as it is. Buffers do not change.

    Parameters
    ----------
    arrays : dict of arrays
        The initial model.
    seed : list of int
    spread : float
        In [0, 1]. 1 draws independent normal deviations, 0 returns the same values.
    buffers : Buffers
    """
    other = dict(arrays)
    for name, array in buffers.parameters(arrays).items():
        if spread and array.size and (deviation := array.std(dtype=np.float64)):
            mean = array.mean(dtype=np.float64)
            noise = np.random.default_rng([*seed, crc32(name.encode())]).normal(scale=deviation, size=array.shape)
            moved = mean + np.sqrt(1 - spread**2) * (array - mean) + spread * noise
            other[name] = np.asarray(moved, dtype=array.dtype)
    return other
