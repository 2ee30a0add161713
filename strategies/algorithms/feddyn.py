"""The server of FedDyn: the mean of the trained models, corrected by what all nodes have moved so far.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1,
https://arxiv.org/abs/2111.04263.
"""

from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays
from ..base import BaseStrategy
from ..profiles import Profile
from ..records import RoundStep
from ..replies import CountedReplies, Reply


class FedDyn(BaseStrategy):
    """FedAvg with a server state h, the mean over all nodes of the linear terms that they keep.

    A node that moves by D_i in a round subtracts α D_i from its linear term g_i, which starts at 0. The server
    subtracts α Σ D_i over the nodes P of the round from Σ g_i, and the next shared parameters are mean_P y_i − h / α
    with h = Σ g_i / N. N counts the nodes with examples that have been connected since the server started. Buffers are
    averaged.

    A node cannot know whether its reply will be refused, lost, or dropped because it is late. The record ``counted`` of
    its next message says which reply was counted last, and the node takes back −α D_i if D_i is not of that one. So h
    is the mean of the terms that nodes start from.

    Parameters
    ----------
    alpha : float
        α ≥ 0, the strength of the regularisation, as on the nodes. 0 is FedAvg, bit for bit.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. ``weighting`` must be "uniform".

    Raises
    ------
    ValueError
        An argument is out of range, or ``privacy`` or ``aggregation`` is not the plain mean.
    """

    privacy_gap: ClassVar[str] = "its server state adds up the noise of all rounds"
    secrecy_gap: ClassVar[str | None] = "it tells each node which of its replies was counted"
    robustness_gap: ClassVar[str] = "its server state is the sum of the updates of all replies"
    kept: ClassVar[tuple[str, ...]] = ("_sum", "_counted")

    def __init__(self, *, alpha: float = 0.1, **base: Any) -> None:
        super().__init__(**base)
        if not alpha >= 0:
            raise ValueError(f"alpha = {alpha}: must be at least 0")
        self.alpha = alpha
        self._sum: Arrays = {}
        self._nodes: set[str] = set()
        self._counted = CountedReplies()

    @property
    def h(self) -> Arrays:
        """The mean of the nodes' linear terms, float64; empty before the first round."""
        return {name: np.asarray(total / max(len(self._nodes), 1)) for name, total in self._sum.items()}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        trained = self.buffers.parameters(arrays)
        self._sum = {name: self._sum.get(name, np.zeros(array.shape)) for name, array in trained.items()}

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "train":
            self._counted.complete(profile, content)

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        self._counted.note(self.report.round, reply)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        self._nodes |= self.registry.with_examples()
        closed = super().close_round(server_round, current, aggregate)
        if not aggregate or self.alpha == 0:
            return closed
        for name in self._sum:
            # Algorithm 1: h ← h − α (1/N) Σ (θ_k − θ) over the nodes of the round, kept as N h
            moved = aggregate[name].astype(np.float64) - current[name]
            self._sum[name] = np.asarray(self._sum[name] - self.alpha * self.report.replies * moved)
        h = self.h
        # Algorithm 1: θ is the mean of the nodes' models minus h / α
        corrected = {name: np.asarray(closed[name] - h[name] / self.alpha, closed[name].dtype) for name in h}
        return {**closed, **corrected}

    def round_info(self) -> dict[str, Any]:
        """The number N of nodes and the Euclidean norm of h after the round."""
        norm = float(np.sqrt(sum(np.square(array).sum() for array in self.h.values())))
        return {"feddyn": {"nodes": len(self._nodes), "h-norm": norm}}
