"""The server of SCAFFOLD: FedAvg that keeps the mean of the nodes' control variates.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, Algorithm 1,
https://arxiv.org/abs/1910.06378.
"""

from logging import WARNING
from math import inf
from typing import Any, ClassVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from ..aggregation import Aggregate
from ..arrays import Arrays, is_float, to_record
from ..base import BaseStrategy
from ..bounds import norm
from ..profiles import Profile
from ..records import RoundStep
from ..replies import CountedReplies, Reply
from ..wire import SCAFFOLD_CONTROL, SCAFFOLD_LENGTH

_SHORTEST = 1e-12  # quotients stay finite


class Scaffold(BaseStrategy):
    """FedAvg with a server control variate c, the mean of the nodes' control variates c_i.

    A TRAIN message brings c as the ArrayRecord ``scaffold.control``, with the names, shapes and dtypes of the shared
    floating-point arrays. A reply must bring K η_l, its number of local steps times their learning rate, as the metric
    ``scaffold.length``. The change of the node's control variate follows from its update, so the server computes it:
    c_i⁺ − c_i = −c + (x − y) / (K η_l), and 0 for buffers.

    The server keeps Σ c_i in float64 and divides by the number N of nodes, so that c ← c + (1/N) Σ (c_i⁺ − c_i) also
    holds when nodes join later. N counts the nodes with examples that have been connected since the server started.
    A node cannot know whether its reply will be refused, lost, or dropped because it is late. The record ``counted`` of
    its next message says which reply was counted last, and the node goes back to c_i if c_i⁺ is not of that one. So c
    is the mean of the control variates that nodes start from.

    The global step size η_g of the paper is the learning rate of the ``server_optimizer`` SGD.

    Parameters
    ----------
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`. ``weighting`` must be "uniform", as in the paper.

    Raises
    ------
    ValueError
        An argument is out of range, ``privacy`` is central differential privacy, which would not cover the control
        variates, or ``compression`` is set.
    """

    privacy_gap: ClassVar[str] = "it also takes the change of each node's control variate, without noise"
    robustness_gap: ClassVar[str] = "it also averages the changes of the nodes' control variates"
    compression_gap: ClassVar[str] = "it computes the nodes' control variates from their exact updates"
    kept: ClassVar[tuple[str, ...]] = ("_sum", "_counted")

    def __init__(self, **base: Any) -> None:
        super().__init__(**base)
        self._sum: Arrays = {}
        self._sent: Arrays = {}  # c as the nodes of the round receive it
        self._nodes: set[str] = set()
        self._counted = CountedReplies()

    @property
    def control(self) -> Arrays:
        """The server control variate c of the next round, float64; empty before the first round."""
        return {name: np.asarray(total / max(len(self._nodes), 1)) for name, total in self._sum.items()}

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        if self.size_bound.has_risen("the update"):
            log(
                WARNING,
                "round %s: the updates have grown suddenly; the control variates begin at 0 again",
                server_round,
            )
            self._sum, self._counted = {}, CountedReplies()
        self._sum = {name: self._sum.get(name, np.zeros(a.shape)) for name, a in arrays.items() if is_float(a)}

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase == "train":
            content[SCAFFOLD_CONTROL] = self.record_once(SCAFFOLD_CONTROL, self._control_record)
            self._counted.complete(profile, content)

    def refusal_reason(self, reply: Reply) -> str | None:
        length = reply.metrics.get(SCAFFOLD_LENGTH)
        if not isinstance(length, int | float) or not _SHORTEST <= length < inf:
            return f"{SCAFFOLD_LENGTH} is {length}: must be a number above 0, as nodes of SCAFFOLD report"
        return None

    def further_sizes(self, reply: Reply) -> dict[str, float]:
        return {"the change of the control variate": norm(self._change_of(reply))}

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        for name, change in self._change_of(reply).items():
            self._sum[name] = np.asarray(self._sum[name] + change)  # Algorithm 1: c ← c + (1/N) Σ (c_i⁺ − c_i), times N
        self._counted.note(self.report.round, reply)

    def round_info(self) -> dict[str, Any]:
        """The number N of nodes and the Euclidean norm of c after the round."""
        norm = float(np.sqrt(sum(np.square(array).sum() for array in self.control.values())))
        return {"scaffold": {"nodes": len(self._nodes), "control-norm": norm}}

    def _control_record(self) -> ArrayRecord:
        self._nodes |= self.registry.with_examples()  # the nodes of the round are known by now
        self._sent = {name: array.astype(self._current[name].dtype) for name, array in self.control.items()}
        return to_record(self._sent)

    def _change_of(self, reply: Reply) -> Arrays:
        """c_i⁺ − c_i, float64."""
        length = float(cast(float, reply.metrics[SCAFFOLD_LENGTH]))
        changes = {}
        for name in self.buffers.parameters(self._sum):
            # Equation 4, Option II: c_i⁺ = c_i − c + (x − y) / (K η_l), with c as the node received it
            moved = self._current[name].astype(np.float64) - reply.arrays[name]
            changes[name] = np.asarray(moved / length - self._sent[name])
        return changes
