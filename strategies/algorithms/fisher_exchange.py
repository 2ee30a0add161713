"""FisherExchange: a quadratic penalty towards other nodes' solutions, weighted by their Fisher information.

Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019 (FedCurv),
https://arxiv.org/abs/1910.07796. Elastic Transfer: federated continual learning of social robots, Equation 4 and
Algorithm 1, which adds penalties towards the solutions of earlier stages. Schwarz et al., Progress & Compress, ICML
2018, Section 3.2 (Online-EWC), https://arxiv.org/abs/1805.06370.

Σ_j F_j (θ − θ_j)² / 2 equals ½ θᵀPθ − Lᵀθ up to a constant, with P = Σ_j F_j and L = Σ_j F_j θ_j, so two tensors
represent any number of anchors θ_j (Shoham et al.). A node's own term is left out of the sum that the node receives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from math import isfinite
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from .. import wire
from ..aggregation import Aggregate
from ..arrays import Arrays, check_alike, in_blocks, is_float, to_record
from ..base import BaseStrategy
from ..checks import require_one_of, stage_of
from ..profiles import Profile
from ..records import RoundStep
from ..replies import Reply, read_arrays

Anchors = Literal["online", "separate"]


class FisherExchange(BaseStrategy):
    """FedAvg with quadratic penalties towards earlier solutions of the node and of the other nodes.

    Node c minimises its loss + ½ own_past F*_c (θ − θ*_c)² + ½ others_past Σ_{j≠c} F*_j (θ − θ*_j)²
    + ½ others_now Σ_{j≠c} F̂_j (θ − θ̂_j)². θ̂_j and F̂_j are the parameters and the Fisher information that node j
    published last in the current stage, θ*_j and F*_j those of earlier stages. FedCurv is ``others_now`` alone (its λ
    is not multiplied by ½: use twice its value), EWC in FedAvg is ``own_past`` alone, and Elastic Transfer uses all
    three (λ1, λ2, λ3 in this order). With all three 0 this is FedAvg, messages contain nothing but the parameters, and
    the log has a warning. Without stages only ``others_now`` has an effect.

    On the wire: a TRAIN message contains the ConfigRecord ``fisher`` with the key ``estimator`` and, if any penalty
    applies to the node, the ArrayRecords ``fisher.prior-precision`` (P ≥ 0) and ``fisher.prior-linear`` (L) with the
    names, shapes and dtypes of the shared parameters. The node adds Pθ − L to its gradients. Its reply contains the
    ArrayRecord ``fisher.precision`` in the form of all shared floating-point arrays, finite and ≥ 0: the diagonal of
    the Fisher information at the returned parameters, zeros where it has none (frozen layers); what it has for buffers
    is ignored. A reply without a valid ``fisher.precision`` is refused. In addition to the model, a node thus receives
    two tensors and sends one, independent of the number of nodes; the exchange as printed in Elastic Transfer sends two
    tensors from every node to every node.

    The server computes F·θ and subtracts a node's own term from the sums, because only the server knows which replies
    it accepted and because the subtraction needs more than float32 precision. What a node published is stored under its
    stable key until the node publishes again, also during rounds that the node misses. This memory grows with the
    number of nodes: two tensors per node, two more in float64 with ``own_past`` or ``others_past``, and the two of its
    message during a round; checkpoints contain the first four. Nodes without a profile have no stable key: in a resumed
    run, what they published stays although they no longer exist under that key.

    The stage is the integer ``stage`` in the train config, 0 if missing. When it changes, what each node published last
    becomes part of its past, and the new stage starts without solutions (Algorithm 1, lines 2 to 4).

    Parameters
    ----------
    own_past, others_past, others_now : float
        Weights of the three penalties on the scale of the nodes' loss, finite and ≥ 0; the paper tries 0, 0.05 and 0.5.
        Where the loss is T times a negative log-likelihood (T = 2σ² for a mean squared error with noise of variance
        σ²), the weight T is Bayes' rule for a solution from as many examples.
    anchors : "online" or "separate"
        How to combine several past stages: "online" adds the precisions and centres the sum at the newest solution
        (Online-EWC, the paper's choice), "separate" centres each precision at its own solution (EWC). After one stage
        both are equal.
    estimator : FisherEstimator
        How nodes estimate the Fisher information (:data:`fedapps.clients.fisher.Estimator`).
    **base
        As in :class:`BaseStrategy`.

    Raises
    ------
    ValueError
        A parameter is out of range; the message contains its name, its value and the allowed values.
    """

    privacy_gap: ClassVar[str] = (
        "it also stores each node's Fisher information and parameters and sends sums of them to the other nodes"
    )
    robustness_gap: ClassVar[str] = (
        "nodes also receive sums of the other nodes' Fisher information, in which one Byzantine reply can outweigh all "
        "others"
    )
    compression_gap: ClassVar[str] = (
        "a node's Fisher information belongs to its exact parameters, which the penalties of the other nodes use"
    )
    reply_records: ClassVar[int] = 2
    kept: ClassVar[tuple[str, ...]] = ("stage", "_now", "_past")

    def __init__(
        self,
        *,
        own_past: float = 0.0,
        others_past: float = 0.0,
        others_now: float = 0.0,
        anchors: Anchors = "online",
        estimator: wire.FisherEstimator = "per-sample",
        **base: Any,
    ) -> None:
        super().__init__(**base)
        self.own_past = _weight("own_past", own_past)
        self.others_past = _weight("others_past", others_past)
        self.others_now = _weight("others_now", others_now)
        require_one_of("anchors", anchors, get_args(Anchors))
        require_one_of("estimator", estimator, get_args(wire.FisherEstimator))
        self.anchors, self.estimator = anchors, estimator
        self.stage = 0
        # θ and F ≥ 0 of the last accepted reply of each node, in the dtypes of the model, and (P, L) of its past
        self._now: dict[str, Sequence[Arrays]] = {}
        self._past: dict[str, Sequence[Arrays]] = {}
        self._sum_now = QuadraticTermSum()
        self._sum_past = QuadraticTermSum()
        self._num_published = 0  # in this round

    @property
    def exchanges(self) -> bool:
        """Whether any penalty has a weight above 0, so that nodes must publish precisions."""
        return self._uses_past or self.others_now > 0

    @property
    def _uses_past(self) -> bool:
        return self.own_past > 0 or self.others_past > 0

    def summary(self) -> None:
        weights = {"own past": self.own_past, "others' past": self.others_past, "others now": self.others_now}
        positive = ", ".join(f"{name} {weight:g}" for name, weight in weights.items() if weight)
        if positive:
            log(INFO, "\t├── penalties: %s", positive)
        else:
            log(
                WARNING,
                "own_past, others_past and others_now are 0, so this is FedAvg: one must be above 0 for a penalty",
            )
        super().summary()

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        """If ``config`` has a new ``stage``, close the current stage.

        Raises
        ------
        ValueError
            The stage is not an integer.
        """
        stage = stage_of(config)
        if stage != self.stage:
            self._close_stage()
            self.stage = stage
        self._num_published = 0
        if self.exchanges:  # sums are recomputed in the order of the keys, so that a resumed run has the same bits
            self._sum_now = QuadraticTermSum.of(QuadraticTerm.around(*self._now[key]) for key in sorted(self._now))
            self._sum_past = QuadraticTermSum.of(QuadraticTerm(*self._past[key]) for key in sorted(self._past))

    def complete(self, phase: RoundStep, profile: Profile, content: RecordDict) -> None:
        if phase != "train" or not self.exchanges:
            return
        content[wire.FISHER] = ConfigRecord({wire.FISHER_ESTIMATOR: self.estimator})
        if terms := self._terms(profile.key):
            prior = QuadraticTerm.weighted(terms)
            content[wire.FISHER_PRIOR_PRECISION] = self._to_record(prior.precision)
            content[wire.FISHER_PRIOR_LINEAR] = self._to_record(prior.linear)

    def refusal_reason(self, reply: Reply) -> str | None:
        if not self.exchanges:
            return None
        try:
            self._precision_of(reply.content)
        except ValueError as refusal:
            return f"{wire.FISHER_PRECISION}: {refusal}"
        return None

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        if self.exchanges:
            precision = self._precision_of(reply.content)
            anchor = {name: reply.arrays[name] for name in precision}
            self._now[reply.profile.key] = (anchor, precision)
            self._num_published += 1

    def round_info(self) -> dict[str, Any]:
        facts = {"estimator": self.estimator, "stage": self.stage, "published": self._num_published}
        return {"fisher": {**facts, "nodes-now": len(self._now), "nodes-past": len(self._past)}}

    def _terms(self, key: str) -> list[tuple[float, QuadraticTerm]]:
        """The weighted penalties of a node; empty if there is no published solution that applies to it."""
        past = QuadraticTerm(*self._past[key]) if key in self._past else None
        now = QuadraticTerm.around(*self._now[key]) if key in self._now else None
        # Elastic Transfer's loss: λ1 own past, λ2 the others' past, λ3 the others' present (FedCurv: λ3 alone)
        terms = []
        if self.own_past > 0 and past:
            terms.append((self.own_past, past))
        if self.others_past > 0 and self._sum_past.count > (past is not None):
            terms.append((self.others_past, self._sum_past.without(past)))
        if self.others_now > 0 and self._sum_now.count > (now is not None):
            terms.append((self.others_now, self._sum_now.without(now)))
        return terms

    def _close_stage(self) -> None:
        if self._uses_past:
            for key, (anchor, precision) in self._now.items():
                # Algorithm 1, lines 2 to 4: the solution of the stage joins the past, Σ F (EWC) around θ* (Online-EWC)
                total = QuadraticTerm.around(anchor, precision)
                if key in self._past:
                    total = QuadraticTerm.weighted([(1.0, QuadraticTerm(*self._past[key])), (1.0, total)])
                if self.anchors == "online":
                    total = QuadraticTerm.around(anchor, total.precision)
                self._past[key] = (total.precision, total.linear)
        self._now = {}

    def _to_record(self, arrays: Arrays) -> ArrayRecord:
        return to_record({name: array.astype(self._current[name].dtype) for name, array in arrays.items()})

    def _precision_of(self, content: RecordDict) -> Arrays:
        record = content.get(wire.FISHER_PRECISION)
        if not isinstance(record, ArrayRecord):
            raise ValueError("no ArrayRecord of this name in the reply; the node's client must publish it")
        precision = read_arrays(record, {name: array for name, array in self._current.items() if is_float(array)})
        if negative := [name for name, array in precision.items() if (array < 0).any()]:
            raise ValueError(f"values are below 0: {', '.join(negative)}")
        return self.buffers.parameters(precision)


def _weight(key: str, value: float) -> float:
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"{key} = {value!r}: must be a finite number, at least 0 (0 disables the penalty)")
    return float(value)


@dataclass(frozen=True)
class QuadraticTerm:
    """The penalty ½ θᵀPθ − Lᵀθ with a diagonal P.

    Parameters
    ----------
    precision, linear : dict of arrays
        P ≥ 0 and L: float64 arrays with the same names and shapes.
    """

    precision: Arrays
    linear: Arrays

    @classmethod
    def around(cls, anchor: Arrays, precision: Arrays) -> QuadraticTerm:
        """The term (F, F·θ) of an anchor θ. The product of two float32 numbers is exact in float64."""
        wide = {name: np.asarray(array, dtype=np.float64) for name, array in precision.items()}
        return cls(wide, {name: np.asarray(wide[name] * np.asarray(anchor[name], np.float64)) for name in wide})

    @classmethod
    def weighted(cls, terms: Iterable[tuple[float, QuadraticTerm]]) -> QuadraticTerm:
        """Σ λ·term over at least one pair (λ, term), each λ ≥ 0."""
        precision: Arrays = {}
        linear: Arrays = {}
        for weight, term in terms:
            for name in term.precision:
                precision[name] = np.asarray(precision.get(name, 0.0) + weight * term.precision[name])
                linear[name] = np.asarray(linear.get(name, 0.0) + weight * term.linear[name])
        return cls(precision, linear)


@dataclass
class QuadraticTermSum:
    """The sum of terms, and the sum of all terms but one.

    Every value is stored as two float64 numbers, the sum and its rounding error (Knuth, The Art of Computer Programming
    2, 4.2.2, theorem B). Subtracting a term that is 10¹⁵ times the rest therefore yields the rest, where a plain
    difference would yield noise. Memory is four float64 copies of the model, whatever the number of terms.
    """

    count: int = 0
    _precision: _ExactSum = field(default_factory=lambda: _ExactSum(), repr=False)
    _linear: _ExactSum = field(default_factory=lambda: _ExactSum(), repr=False)

    @classmethod
    def of(cls, terms: Iterable[QuadraticTerm]) -> QuadraticTermSum:
        """The sum of ``terms``; the same order gives the same bits."""
        total = cls()
        for term in terms:
            total.add(term)
        return total

    def add(self, term: QuadraticTerm) -> None:
        """Add a term, which is not kept.

        Raises
        ------
        ValueError
            Names or shapes differ from the first term's.
        """
        self._precision.add(term.precision)
        self._linear.add(term.linear)
        self.count += 1

    def without(self, term: QuadraticTerm | None) -> QuadraticTerm:
        """The sum without ``term``, which must be one of the terms added; ``None`` leaves out nothing."""
        precision = self._precision.without(term.precision if term else {})
        # Rounding of the last bit can give values slightly below 0, which no precision has.
        clipped = {name: np.maximum(array, 0.0) for name, array in precision.items()}
        return QuadraticTerm(clipped, self._linear.without(term.linear if term else {}))


@dataclass
class _ExactSum:
    _sums: Arrays = field(default_factory=dict)
    _errors: Arrays = field(default_factory=dict)

    def add(self, arrays: Arrays) -> None:
        if not self._sums:
            self._sums = {name: np.zeros(array.shape) for name, array in arrays.items()}
            self._errors = {name: np.zeros(array.shape) for name, array in arrays.items()}
        check_alike(self._sums, arrays)
        for name, array in arrays.items():
            for sums, errors, values in in_blocks(self._sums[name], self._errors[name], array):
                sums[...], error = _two_sum(sums, values)
                np.add(errors, error, out=errors)

    def without(self, arrays: Arrays) -> Arrays:
        remaining: Arrays = {}
        for name, total in self._sums.items():
            rest, error = _two_sum(total, -arrays[name]) if name in arrays else (total, np.zeros(()))
            remaining[name] = np.asarray(rest + (self._errors[name] + error))
        return remaining


def _two_sum(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rounded sum fl(a + b) and its exact rounding error."""
    total = np.asarray(a + b)
    added = total - a
    return total, np.asarray((a - (total - added)) + (b - added))
