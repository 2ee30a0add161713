"""The server of FedNova: the mean of updates that are divided by the length of their local training.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020,
Section 4, https://arxiv.org/abs/2007.07481.
"""

from typing import Any, ClassVar, cast

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from ..aggregation import Aggregate, stretched
from ..arrays import Arrays
from ..base import BaseStrategy
from ..replies import Reply
from ..wire import FEDNOVA_NORM


class FedNova(BaseStrategy):
    """w ← w − τ_eff Σ p_i (w − y_i) / ‖a_i‖₁ with τ_eff = Σ p_i ‖a_i‖₁, over the nodes of the round.

    A node with many local steps does not pull the shared model towards its own optimum. A reply brings ‖a_i‖₁ ≥ 1 as
    the metric ``fednova.norm``: the number of steps for plain SGD. If all nodes bring the same, this is FedAvg, bit for
    bit. A server optimizer takes w − τ_eff Σ p_i (w − y_i) / ‖a_i‖₁ as the mean. Buffers are averaged with weights
    proportional to p_i / ‖a_i‖₁.

    Parameters are those of :class:`~fedapps.strategies.base.BaseStrategy`.
    """

    privacy_gap: ClassVar[str] = "the weight of an update depends on the steps of its node"
    robustness_gap: ClassVar[str] = "nodes report themselves by how much their updates are divided"

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self._reset()

    def _reset(self) -> None:
        self._first = 0.0  # ‖a‖₁ of the first reply, in units of which the others are counted
        self._weight = self._divided = self._length = 0.0

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._reset()

    def refusal_reason(self, reply: Reply) -> str | None:
        norm = reply.metrics.get(FEDNOVA_NORM)
        if not isinstance(norm, int | float) or not 1 <= norm < float("inf"):
            return f"metric {FEDNOVA_NORM} is {norm}: a client returns a number of at least 1 (docs/strategies.md)"
        return None

    def further_sizes(self, reply: Reply) -> dict[str, float]:
        length = float(cast(float, reply.metrics[FEDNOVA_NORM]))
        return {FEDNOVA_NORM: length, f"1 / {FEDNOVA_NORM}": 1 / length}

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        norm = float(cast(float, reply.metrics[FEDNOVA_NORM]))
        self._first = self._first or norm
        share = self._first / norm
        # Section 4: the mean of d_i = (w − y_i) / ‖a_i‖₁, which the weights p_i / ‖a_i‖₁ give, and τ_eff = Σ p_i ‖a_i‖₁
        self._weight += reply.weight
        self._divided += reply.weight * share
        self._length += reply.weight * (norm / self._first)
        aggregate.add(reply.arrays, reply.weight * share)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if aggregate:
            # τ_eff, times Σ p_i / ‖a_i‖₁ by which the weighted mean is divided
            factor = (self._length / self._weight) * (self._divided / self._weight)
            aggregate = stretched(current, aggregate, factor, self.buffers)
        return super().close_round(server_round, current, aggregate)
