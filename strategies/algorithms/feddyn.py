"""The server of FedDyn: the mean of the trained models, corrected by what all nodes have moved so far.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1,
https://arxiv.org/abs/2111.04263.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays, to_record
from ..base import BaseStrategy
from ..bounds import norm
from ..optimizers import SGD
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply
from ..wire import FEDDYN_GRADIENT


class FedDyn(BaseStrategy):
    """FedAvg with a server state h, the mean over all nodes of their linear terms.

    A node that moves by D_i in a round changes its linear term g_i, which starts at 0, by −α D_i. The next shared
    parameters are mean y_i − h / α over the nodes of the round, with h = Σ g_i / N. N counts the nodes with examples
    that have been connected, also before a restart. Buffers are averaged.

    g_i follows from the updates of the node, so the server computes and keeps it, and a TRAIN message brings it as
    the ArrayRecord ``feddyn.gradient``, with the names, shapes and dtypes of the shared parameters: the node adds α
    (θ − θ received) − g_i to its gradients. So h is always the mean of the terms that nodes train with: a reply
    that is lost, late or refused changes neither, and what a false reply has done to both ends with the node's next
    true ones, as fast as FedDyn converges from any other linear terms.

    Memory and checkpoints have an array record for each node, under its stable key, as large as the model.

    Parameters
    ----------
    alpha : float
        α ≥ 0, the strength of the regularisation, as on the nodes. 0 is FedAvg, bit for bit.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. ``weighting`` is "uniform", ``server_optimizer`` SGD(1).

    Raises
    ------
    ValueError
        An argument is out of range, ``weighting`` or ``server_optimizer`` is another, or ``privacy`` or ``aggregation``
        is not the plain mean.
    """

    privacy_gap: ClassVar[str] = "its server state adds up the noise of all rounds"
    secrecy_gap: ClassVar[str | None] = "it computes the linear term of each node from its update"
    robustness_gap: ClassVar[str] = "its server state is the sum of the updates of all replies"
    flower_gaps: ClassVar[Mapping[str, str]] = {"weighted_by_key": "all nodes have equal weights, remove it"}
    equal_weights: ClassVar[str] = "the server corrects the plain mean"
    kept: ClassVar[tuple[str, ...]] = ("_sum", "_nodes", "_terms")
    needs_profiles: bool = True

    def __init__(self, *, alpha: float = 0.1, **base: Any) -> None:
        super().__init__(**base)
        if not 0 <= alpha < inf:
            raise ValueError(f"alpha = {alpha}: must be finite and at least 0")
        if self.server_optimizer != SGD(1.0):
            raise ValueError(
                f"server_optimizer = {self.server_optimizer}: must be SGD(1.0), because {self.equal_weights}; leave it "
                "out"
            )
        self.alpha = alpha
        self._sum: Arrays = {}
        self._nodes: set[str] = set()
        self._terms: dict[str, Arrays] = {}  # g_i by the nodes' keys, in the dtypes of the model

    @property
    def h(self) -> Arrays:
        """The mean of the nodes' linear terms, float64; empty before the first round."""
        return {name: np.asarray(total / max(len(self._nodes), 1)) for name, total in self._sum.items()}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        trained = self.buffers.parameters(arrays)
        self._sum = {name: self._sum.get(name, np.zeros(array.shape)) for name, array in trained.items()}

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "train" and self.alpha:
            own = self._terms.get(profile.key, {})
            terms = {name: own[name] if name in own else np.zeros_like(self._current[name]) for name in self._sum}
            content[FEDDYN_GRADIENT] = to_record(terms)

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        if not self.alpha:
            return
        own, terms = self._terms.get(reply.profile.key, {}), {}
        for name, total in self._sum.items():
            before = np.asarray(own.get(name, 0.0), dtype=np.float64)
            # Algorithm 1: g_i ← g_i − α (θ_i − θ)
            term = before - self.alpha * (reply.arrays[name].astype(np.float64) - self._current[name])
            terms[name] = np.asarray(term, self._current[name].dtype)
            self._sum[name] = np.asarray(total + (terms[name] - before))
        self._terms[reply.profile.key] = terms

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        self._nodes |= self.registry.with_examples()
        closed = super().close_round(server_round, current, aggregate)
        if not aggregate or self.alpha == 0:
            return closed
        h = self.h  # Algorithm 1: h ← h − α (1/N) Σ (θ_k − θ) over the nodes of the round
        # Algorithm 1: θ is the mean of the nodes' models minus h / α
        corrected = {name: np.asarray(closed[name] - h[name] / self.alpha, closed[name].dtype) for name in h}
        return {**closed, **corrected}

    def round_info(self) -> dict[str, Any]:
        """The number N of nodes and the Euclidean norm of h after the round."""
        return {"feddyn": {"nodes": len(self._nodes), "h-norm": norm(self.h)}}
