"""The server of SCAFFOLD: FedAvg that keeps the nodes' control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1,
https://arxiv.org/abs/1910.06378.
"""

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays, is_float, to_record
from ..base import BaseStrategy
from ..bounds import norm
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply
from ..wire import SCAFFOLD_CONTROL, SCAFFOLD_LENGTH

_SHORTEST = 1e-12  # quotients stay finite


class Scaffold(BaseStrategy):
    """FedAvg with a server control variate c, the mean of the nodes' control variates c_i.

    A TRAIN message brings c − c_i as the ArrayRecord ``scaffold.control``, with the names, shapes and dtypes of the
    shared floating-point arrays; the node adds it to its gradients. A reply must bring K η_l, its number of local
    steps times their learning rate, as the metric ``scaffold.length``. The node's control variate follows from its
    update, so the server computes and keeps it: c_i⁺ = c_i − c + (x − y) / (K η_l), and 0 for buffers. A reply that
    is lost, late or malformed changes nothing. What a false reply has done to c_i, and to c, ends with the next
    true one of the node, because c_i⁺ is the mean of the node's gradients, whatever c_i was.

    The server keeps Σ c_i in float64 and divides by the number N of nodes, so that c ← c + (1/N) Σ (c_i⁺ − c_i) also
    holds when nodes join later. N counts the nodes with examples that have been connected, also before a restart.
    Memory and checkpoints have an array record for each node, under its stable key, as large as the model.

    The global step size η_g of the paper is the learning rate of the ``server_optimizer`` SGD.

    Parameters
    ----------
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. ``weighting`` is "uniform", as in the paper.

    Raises
    ------
    ValueError
        An argument is out of range, ``weighting`` is another, ``privacy`` is central differential privacy, which would
        not cover the control variates, or ``compression`` is set.
    """

    privacy_gap: ClassVar[str] = "it also takes the change of each node's control variate, without noise"
    robustness_gap: ClassVar[str] = "it also averages the changes of the nodes' control variates"
    compression_gap: ClassVar[str] = "it computes the nodes' control variates from their exact updates"
    flower_gaps: ClassVar[Mapping[str, str]] = {"weighted_by_key": "all nodes have equal weights, remove it"}
    equal_weights: ClassVar[str] = "the control variate is a plain mean"
    kept: ClassVar[tuple[str, ...]] = ("_sum", "_nodes", "_controls")
    needs_profiles: bool = True

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self._sum: Arrays = {}
        self._sent: Arrays = {}  # c of the round, in the dtypes of the model
        self._nodes: set[str] = set()
        self._controls: dict[str, Arrays] = {}  # c_i by the nodes' keys, in the dtypes of the model

    @property
    def control(self) -> Arrays:
        """The server control variate c of the next round, float64; empty before the first round."""
        return {name: np.asarray(total / max(len(self._nodes), 1)) for name, total in self._sum.items()}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._sent = {}
        self._sum = {name: self._sum.get(name, np.zeros(a.shape)) for name, a in arrays.items() if is_float(a)}

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "train":
            self._sent = self._sent or self._rounded_control()
            own = self._controls.get(profile.key, {})
            # Equation 3: a local step is y ← y − η_l (g(y) + c − c_i)
            correction = {name: np.asarray(c - own[name]) if name in own else c for name, c in self._sent.items()}
            content[SCAFFOLD_CONTROL] = to_record(correction)

    def refusal_reason(self, reply: Reply) -> str | None:
        length = reply.metrics.get(SCAFFOLD_LENGTH)
        if not isinstance(length, int | float) or not _SHORTEST <= length < inf:
            return f"metric {SCAFFOLD_LENGTH} is {length}: a client returns a number above 0 (docs/strategies.md)"
        return None

    def further_sizes(self, reply: Reply) -> dict[str, float]:
        return {"the control variate": norm(self._control_of(reply, self._gradients_of(reply)))}

    def size_refusal_reason(self, reply: Reply, start: Arrays) -> str | None:
        """Also forgets c_i: with one that an earlier reply has made too large, the next update would be, too."""
        reason = super().size_refusal_reason(reply, start)
        if reason:
            for name, own in self._controls.pop(reply.profile.key, {}).items():
                self._sum[name] = np.asarray(self._sum[name] - own)
        return reason

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        gradients = self._gradients_of(reply)
        for name, gradient in gradients.items():
            # Algorithm 1: c ← c + (1/N) Σ (c_i⁺ − c_i), times N
            self._sum[name] = np.asarray(self._sum[name] + (gradient - self._sent[name]))
        controls = self._control_of(reply, gradients)
        self._controls[reply.profile.key] = {name: c.astype(self._sent[name].dtype) for name, c in controls.items()}

    def round_info(self) -> dict[str, Any]:
        """The number N of nodes and the Euclidean norm of c after the round."""
        return {"scaffold": {"nodes": len(self._nodes), "control-norm": norm(self.control)}}

    def _rounded_control(self) -> Arrays:
        self._nodes |= self.registry.with_examples()  # the nodes of the round are known by now
        return {name: array.astype(self._current[name].dtype) for name, array in self.control.items()}

    def _gradients_of(self, reply: Reply) -> Arrays:
        """(x − y) / (K η_l), float64."""
        length = float(cast(float, reply.metrics[SCAFFOLD_LENGTH]))
        return {
            name: np.asarray((self._current[name].astype(np.float64) - reply.arrays[name]) / length)
            for name in self.buffers.parameters(self._sum)
        }

    def _control_of(self, reply: Reply, gradients: Arrays) -> Arrays:
        """c_i⁺, float64."""
        own = self._controls.get(reply.profile.key, {})
        # Equation 4, Option II: c_i⁺ = c_i − c + (x − y) / (K η_l), with c in the dtype that the node received
        return {
            name: np.asarray(own.get(name, np.zeros(())).astype(np.float64) - self._sent[name] + gradient)
            for name, gradient in gradients.items()
        }
