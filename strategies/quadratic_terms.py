"""Quadratic penalties as a precision and a linear term, and leave-one-out sums of them.

Σ_j F_j (θ − θ_j)² / 2 equals ½ θᵀPθ − Lᵀθ up to a constant, with P = Σ_j F_j and L = Σ_j F_j θ_j, so two tensors
represent any number of anchors θ_j (Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019,
https://arxiv.org/abs/1910.07796). A node's own term is left out of the sum that the node receives.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, check_alike
from .blocks import aligned, blocks


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
        return cls(wide, {name: wide[name] * np.asarray(anchor[name], dtype=np.float64) for name in wide})

    @classmethod
    def weighted(cls, terms: Iterable[tuple[float, QuadraticTerm]]) -> QuadraticTerm:
        """Σ λ·term over at least one pair (λ, term), each λ ≥ 0."""
        precision: Arrays = {}
        linear: Arrays = {}
        for weight, term in terms:
            for name in term.precision:
                precision[name] = precision.get(name, 0.0) + weight * term.precision[name]
                linear[name] = linear.get(name, 0.0) + weight * term.linear[name]
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

    def without(self, own: QuadraticTerm | None) -> QuadraticTerm:
        """The sum without ``own``, which must be one of the terms added; ``None`` leaves out nothing."""
        precision = self._precision.without(own.precision if own else {})
        # Rounding of the last bit can give values slightly below 0, which no precision has.
        clipped = {name: np.maximum(array, 0.0) for name, array in precision.items()}
        return QuadraticTerm(clipped, self._linear.without(own.linear if own else {}))


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
            sums, errors, values = aligned(self._sums[name], self._errors[name], array)
            for block in blocks(0, sums.size):
                sums[block], error = _two_sum(sums[block], values[block])
                errors[block] += error

    def without(self, own: Arrays) -> Arrays:
        remaining: Arrays = {}
        for name, total in self._sums.items():
            rest, error = _two_sum(total, -own[name]) if name in own else (total, np.zeros(()))
            remaining[name] = np.asarray(rest + (self._errors[name] + error))
        return remaining


def _two_sum(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The rounded sum fl(a + b) and its exact rounding error."""
    total = np.asarray(a + b)
    added = total - a
    return total, np.asarray((a - (total - added)) + (b - added))
