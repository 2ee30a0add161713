"""FisherExchange: every node is held near the other nodes' solutions, where those are sure of themselves.

Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (FedCurv),
https://arxiv.org/abs/1910.07796. Elastic Transfer: federated continual learning of social robots, Equation 4 and
Algorithm 1, which adds what the nodes learned in earlier stages. Schwarz et al., Progress & Compress, ICML 2018,
Section 3.2 (Online-EWC), https://arxiv.org/abs/1805.06370.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from .arrays import Arrays, is_float, to_record
from .base import BaseStrategy
from .profiles import Profile
from .quadratic_terms import QuadraticTerm, QuadraticTermSum, flat_by_key, nested_by_key
from .replies import Reply, read_arrays
from .round_messages import ExtraRecords

ORDER = "fisher"
PRECISION = "fisher.precision"
PRIOR_PRECISION = "fisher.prior-precision"
PRIOR_LINEAR = "fisher.prior-linear"

Anchors = Literal["online", "separate"]
Estimator = Literal["per-sample", "per-batch", "per-batch-scaled"]
_STATE = "fisher."


@dataclass(frozen=True)
class _Published:
    """What a node published last: F ≥ 0, and the parameters θ it returned with it, in the dtypes of the model."""

    precision: Arrays
    anchor: Arrays

    def pair(self) -> QuadraticTerm:
        return QuadraticTerm.around(self.anchor, self.precision)


class FisherExchange(BaseStrategy):
    """FedAvg with a quadratic penalty that ties a node to what the others, and it itself, found before.

    Node c minimises its loss + ½ own_past F*_c (θ − θ*_c)² + ½ others_past Σ_{j≠c} F*_j (θ − θ*_j)²
    + ½ others_now Σ_{j≠c} F̂_j (θ − θ̂_j)², where θ̂_j, F̂_j are what node j published last in the present stage and
    θ*_j, F*_j what it took along from earlier stages. FedCurv has ``others_now`` alone (its λ has no ½ before it:
    give twice its value), EWC in FedAvg ``own_past`` alone, Elastic Transfer all three (λ1, λ2, λ3 in this order).
    All 0 is FedAvg: nothing beside the parameters travels. Without stages, ``others_now`` is the only one of effect.

    On the wire: a TRAIN message brings the ConfigRecord ``fisher`` with the key ``estimator``, and, where there is
    something to be held to, the ArrayRecords ``fisher.prior-precision`` (P ≥ 0) and ``fisher.prior-linear`` (L) with
    the names, shapes and dtypes of the shared floating-point arrays. The node adds Pθ − L to its gradients. Its reply
    brings the ArrayRecord ``fisher.precision``, of the same form, finite and ≥ 0: the diagonal of the Fisher
    information at the parameters that it returns, zeros where it has none (buffers, frozen layers). A reply without
    a fitting one is refused. So a node's traffic is two tensors down and one up beside the model, whatever the
    number of nodes; the exchange as printed in Elastic Transfer takes two from every node to every node.

    The server forms F·θ and takes a node's own term off the sums. It, unlike the node, knows what it accepted, and
    has the digits to do so. What a node published is kept under its stable key until it publishes again, in rounds
    that it misses too. This is the one part of the server whose memory grows with the number of nodes: two tensors
    per node, two in float64 besides with ``own_past`` or ``others_past``, and the two of its message while the round
    lasts; checkpoints hold the first four. Nodes that answer no profile query have no stable key: what they
    published outlives them in a resumed run.

    A stage is the integer ``stage`` in the train config, 0 if there is none. When it changes, what each node
    published last joins its past, and the present starts empty (Algorithm 1, lines 2 to 4).

    Parameters
    ----------
    own_past, others_past, others_now : float
        Finite and ≥ 0; the paper tries 0, 0.05 and 0.5.
    anchors : "online" or "separate"
        The past of several stages: "online" adds the precisions up and centres them at the newest solution
        (Online-EWC, the paper's choice), "separate" keeps each centred at its own (EWC). The same after one stage.
    estimator : "per-sample", "per-batch" or "per-batch-scaled"
        What the nodes are asked to publish: mean squared gradient of single examples; of whole batches, smaller by
        up to the batch size; the same times the batch size.

    Raises ``ValueError`` naming the parameter, its value and what is allowed.
    """

    beside_the_mean: ClassVar[str] = (
        "it also takes each node's Fisher information and parameters, and hands them on to the others"
    )
    reply_records: ClassVar[int] = 2

    def __init__(
        self,
        *,
        own_past: float = 0.0,
        others_past: float = 0.0,
        others_now: float = 0.0,
        anchors: Anchors = "online",
        estimator: Estimator = "per-sample",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.own_past = _weight("own_past", own_past)
        self.others_past = _weight("others_past", others_past)
        self.others_now = _weight("others_now", others_now)
        self.anchors = _choice("anchors", anchors, get_args(Anchors))
        self.estimator = _choice("estimator", estimator, get_args(Estimator))
        self.stage = 0
        self._now: dict[str, _Published] = {}
        self._past: dict[str, QuadraticTerm] = {}
        self._sum_now = QuadraticTermSum()
        self._sum_past = QuadraticTermSum()
        self._heard = 0

    @property
    def exchanges(self) -> bool:
        """Whether any term has a weight, so that precisions are asked for."""
        return self._remembers or self.others_now > 0

    @property
    def _remembers(self) -> bool:
        return self.own_past > 0 or self.others_past > 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As in :class:`BaseStrategy`; a new ``stage`` in ``config`` first makes the present the past."""
        stage = config.get("stage", 0)
        if not isinstance(stage, int) or isinstance(stage, bool):
            raise ValueError(f"config stage = {stage!r}: must be an integer")
        if stage != self.stage:
            self._close_stage()
            self.stage = stage
        return super().configure_train(server_round, arrays, config, grid)

    def begin_round(self, server_round: int, arrays: Arrays) -> None:
        self._heard = 0
        if self.exchanges:  # summed anew in the order of the keys: no drift, and a resumed run has the same bits
            self._sum_now = QuadraticTermSum.of(self._now[key].pair() for key in sorted(self._now))
            self._sum_past = QuadraticTermSum.of(self._past[key] for key in sorted(self._past))

    def train_records(self, server_round: int, profile: Profile) -> ExtraRecords:
        if not self.exchanges:
            return {}
        records: dict[str, ArrayRecord | ConfigRecord] = {ORDER: ConfigRecord({"estimator": self.estimator})}
        if terms := self._terms(profile.key):
            prior = QuadraticTerm.weighted(terms)
            records[PRIOR_PRECISION] = self._to_record(prior.precision)
            records[PRIOR_LINEAR] = self._to_record(prior.linear)
        return records

    def reason_against(self, reply: Reply) -> str | None:
        if not self.exchanges:
            return None
        try:
            self._precision_of(reply.content)
        except ValueError as refusal:
            return f"{PRECISION}: {refusal}"
        return None

    def fold_reply(self, server_round: int, reply: Reply) -> None:
        if self.exchanges:
            precision = self._precision_of(reply.content)
            anchor = {name: reply.arrays[name] for name in precision}
            self._now[reply.profile.key] = _Published(precision, anchor)
            self._heard += 1

    def state(self) -> Arrays:
        kept: Arrays = {f"{_STATE}stage": np.array(self.stage, dtype=np.int64)}
        for key, published in self._now.items():
            kept |= flat_by_key(f"{_STATE}now.", key, precision=published.precision, anchor=published.anchor)
        for key, pair in self._past.items():
            kept |= flat_by_key(f"{_STATE}past.", key, precision=pair.precision, linear=pair.linear)
        return {**super().state(), **kept}

    def load_state(self, state: Arrays) -> None:
        super().load_state(state)
        self.stage = int(state.get(f"{_STATE}stage", np.zeros(())))
        now, past = (nested_by_key(f"{_STATE}{kind}.", state) for kind in ("now", "past"))
        self._now = {key: _Published(parts["precision"], parts["anchor"]) for key, parts in now.items()}
        self._past = {key: QuadraticTerm(parts["precision"], parts["linear"]) for key, parts in past.items()}

    def round_info(self) -> dict[str, Any]:
        facts = {"estimator": self.estimator, "stage": self.stage, "published": self._heard}
        return {"fisher": {**facts, "nodes-now": len(self._now), "nodes-past": len(self._past)}}

    # -- the machinery -------------------------------------------------------------------------------------

    def _terms(self, key: str) -> list[tuple[float, QuadraticTerm]]:
        """The weighted pairs that hold a node; none where nobody published anything yet."""
        past = self._past.get(key)
        now = self._now[key].pair() if key in self._now else None
        terms = []
        if self.own_past > 0 and past:
            terms.append((self.own_past, past))
        if self.others_past > 0 and self._sum_past.count > (past is not None):
            terms.append((self.others_past, self._sum_past.without(past)))
        if self.others_now > 0 and self._sum_now.count > (now is not None):
            terms.append((self.others_now, self._sum_now.without(now)))
        return terms

    def _close_stage(self) -> None:
        if self._remembers:
            for key, published in self._now.items():
                new = published.pair()
                before = self._past.get(key)
                both = QuadraticTerm.weighted([(1.0, before), (1.0, new)]) if before else new
                if self.anchors == "online":
                    both = QuadraticTerm.around(published.anchor, both.precision)
                self._past[key] = both
        self._now = {}

    def _to_record(self, arrays: Arrays) -> ArrayRecord:
        return to_record({name: array.astype(self._current[name].dtype) for name, array in arrays.items()})

    def _precision_of(self, content: RecordDict) -> Arrays:
        record = content.get(PRECISION)
        if not isinstance(record, ArrayRecord):
            raise ValueError("no ArrayRecord of this name in the reply: the node takes no part in the exchange")
        precision = read_arrays(record, {name: array for name, array in self._current.items() if is_float(array)})
        if negative := [name for name, array in precision.items() if (array < 0).any()]:
            raise ValueError(f"values are below 0: {', '.join(negative)}")
        return precision


def _weight(key: str, value: float) -> float:
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{key} = {value!r}: must be a finite number, at least 0 (0 leaves the term out)")
    return float(value)


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ValueError(f"{key} = {value!r}: must be one of {', '.join(map(repr, allowed))}")
    return value
