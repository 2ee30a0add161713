"""The server of q-FFL: updates count by powers of the nodes' losses, and set the length of the step.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2, https://arxiv.org/abs/1905.10497.
"""

from math import inf
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from ..aggregation import Aggregate, stretched
from ..arrays import Arrays
from ..base import BaseStrategy
from ..bounds import SizeBound
from ..checks import require_positive, stage_of
from ..replies import Reply
from ..wire import Q_FFL_LOSS

#: Added to a loss, as in the authors' code, so that every power is defined and above 0.
_LEAST = 1e-10
_LARGEST = 1e10


class QFedAvg(BaseStrategy):
    """w ← w − Σ p_k F_k^q Δw_k / Σ p_k (q F_k^(q−1) ‖Δw_k‖² + L F_k^q) with Δw_k = L (w − y_k).

    F_k ≥ 0 is the loss of w on node k, which its reply brings as the metric ``q-ffl.loss``, y_k are its trained
    parameters, and p_k is its weight. The sum is over the nodes of the round, so that it estimates the gradient of
    Σ p_k F_k^(q+1) / (q+1); the denominator bounds the Lipschitz constant of this gradient. If nodes are drawn in
    proportion to their examples, ``weighting`` must be "uniform". A server optimizer takes the new w as the mean.
    Buffers are averaged with weights proportional to p_k F_k^q.

    Parameters
    ----------
    q : float
        In [0, 20]. 0 is FedAvg, bit for bit; the larger q, the more count the nodes with the largest losses.
    weight_bound : float
        ≥ 1, how many times F_k^q and F_k^(q−1) may exceed the same powers of the median loss of recent replies. A loss
        that would exceed this is replaced by the nearest one that does not. 0 for no bound: one large loss can then
        outweigh all other nodes, and with q < 1 a loss of 0 stops every step.
    lipschitz : float
        L > 0, an estimate of the Lipschitz constant of a node's gradient: 1 / learning rate where this was tuned.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`.

    Raises
    ------
    ValueError
        An argument is out of range, or ``privacy`` or ``aggregation`` is set.
    """

    privacy_gap: ClassVar[str] = "the weight of an update depends on the loss of its node, which is sent without noise"
    robustness_gap: ClassVar[str] = "nodes report the losses by which their updates count"

    kept: ClassVar[tuple[str, ...]] = ("_losses",)

    def __init__(self, *, q: float = 1.0, lipschitz: float = 1.0, weight_bound: float = 0.0, **base: Any) -> None:
        super().__init__(**base)
        if not 0 <= q <= 20:
            raise ValueError(f"q = {q}: must be in [0, 20]")
        require_positive("lipschitz", lipschitz)
        if weight_bound and not 1 <= weight_bound < inf:
            raise ValueError(f"weight_bound = {weight_bound}: must be at least 1, or 0 for no bound")
        self.q, self.lipschitz, self.weight_bound = q, lipschitz, weight_bound
        self._losses = SizeBound()
        self._weights = self._curvature = 0.0

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._weights = self._curvature = 0.0
        self._losses.begin_round(stage_of(config))

    def refusal_reason(self, reply: Reply) -> str | None:
        loss = reply.metrics.get(Q_FFL_LOSS)
        if not isinstance(loss, int | float) or not 0 <= loss <= _LARGEST:
            return f"metric {Q_FFL_LOSS} is {loss}: a client returns one from 0 to {_LARGEST:g} (docs/strategies.md)"
        return None

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        loss, median = float(cast(float, reply.metrics[Q_FFL_LOSS])) + _LEAST, self._losses.median(Q_FFL_LOSS)
        self._losses.note(Q_FFL_LOSS, loss)
        if median and self.weight_bound:
            loss = self._bounded(loss, median)
        # Algorithm 2: the mean has Δ_k = F_k^q Δw_k; of h_k = q F_k^(q−1) ‖Δw_k‖² + L F_k^q the sum is divided by L
        self._weights += reply.weight * loss**self.q
        if self.q:
            squared = self._squared_distance(reply.arrays)
            self._curvature += reply.weight * self.q * loss ** (self.q - 1) * self.lipschitz * squared
        aggregate.add(reply.arrays, reply.weight * loss**self.q)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if aggregate:
            # Algorithm 2: w − Σ Δ_k / Σ h_k, as a part of the way to the mean with the weights F_k^q
            factor = self._weights / (self._weights + self._curvature)
            aggregate = stretched(current, aggregate, factor, self.buffers)
        return super().close_round(server_round, current, aggregate)

    def round_info(self) -> dict[str, Any]:
        """The share of the way to the weighted mean that the step took; 0 without replies."""
        total = self._weights + self._curvature
        return {"q-ffl": {"step": self._weights / total if total else 0.0}}

    def _bounded(self, loss: float, median: float) -> float:
        """The loss within ``weight_bound`` of the median that is nearest to ``loss``."""
        for power in (self.q, self.q - 1):
            if loss**power > self.weight_bound * median**power:
                return float(median * self.weight_bound ** (1 / power))
        return loss

    def _squared_distance(self, arrays: Arrays) -> float:
        """‖w − y‖² over all parameters, in float64."""
        trained = self.buffers.parameters(arrays)
        return sum(
            float(np.square(self._current[name].astype(np.float64) - array).sum()) for name, array in trained.items()
        )
