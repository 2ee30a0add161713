"""Quadratic anchors as pairs of a precision and a linear term, and sums of them that leave one out.

Σ_j F_j (θ − θ_j)² / 2 is, up to a constant, ½ θᵀPθ − Lᵀθ with P = Σ_j F_j and L = Σ_j F_j θ_j, so two tensors stand
for any number of anchors (Shoham et al., Overcoming Forgetting in Federated Learning on Non-IID Data, 2019,
https://arxiv.org/abs/1910.07796). What a node must not be held to is its own term: it is taken off again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from .arrays import Arrays, check_alike


@dataclass(frozen=True)
class QuadraticTerm:
    """``precision`` ≥ 0 and ``linear``: float64 arrays of the same names and shapes."""

    precision: Arrays
    linear: Arrays

    @classmethod
    def around(cls, anchor: Arrays, precision: Arrays) -> QuadraticTerm:
        """The pair (F, F·θ) of an anchor θ. The product of two float32 numbers is exact in float64."""
        wide = {name: np.asarray(array, dtype=np.float64) for name, array in precision.items()}
        return cls(wide, {name: wide[name] * np.asarray(anchor[name], dtype=np.float64) for name in wide})

    @classmethod
    def weighted(cls, terms: Iterable[tuple[float, QuadraticTerm]]) -> QuadraticTerm:
        """Σ λ·pair, each λ ≥ 0, over at least one pair."""
        precision: Arrays = {}
        linear: Arrays = {}
        for weight, pair in terms:
            for name in pair.precision:
                precision[name] = precision.get(name, 0.0) + weight * pair.precision[name]
                linear[name] = linear.get(name, 0.0) + weight * pair.linear[name]
        return cls(precision, linear)


@dataclass
class QuadraticTermSum:
    """The sum of pairs, and the sum of all of them but one.

    Kept in two float64 numbers per value, the sum and its rounding errors (Knuth, The Art of Computer Programming
    2, 4.2.2, theorem B). Taking off a term that is 10¹⁵ times the rest therefore leaves the rest, where a plain
    difference leaves noise. Memory is constant: eight tensors, whatever the number of pairs.
    """

    count: int = 0
    _precision: _ExactSum = field(default_factory=lambda: _ExactSum(), repr=False)
    _linear: _ExactSum = field(default_factory=lambda: _ExactSum(), repr=False)

    @classmethod
    def of(cls, pairs: Iterable[QuadraticTerm]) -> QuadraticTermSum:
        """The sum of ``pairs``; the same order gives the same bits."""
        total = cls()
        for pair in pairs:
            total.add(pair)
        return total

    def add(self, pair: QuadraticTerm) -> None:
        """Add a pair, which is not kept. Raises ``ValueError`` if its names or shapes differ from the first one's."""
        self._precision.add(pair.precision)
        self._linear.add(pair.linear)
        self.count += 1

    def without(self, own: QuadraticTerm | None) -> QuadraticTerm:
        """The sum without ``own``, which must be one of the pairs added, or ``None`` to leave out nothing."""
        precision = self._precision.without(own.precision if own else {})
        # The last bit may fall below the zero that a sum of precisions cannot.
        clipped = {name: np.maximum(array, 0.0) for name, array in precision.items()}
        return QuadraticTerm(clipped, self._linear.without(own.linear if own else {}))


def flat_by_key(prefix: str, key: str, **parts: Arrays) -> Arrays:
    """The arrays of a node under one name each, for a snapshot: ``<prefix><key>.<part>.<name>``.

    Dots and other signs of the key are escaped, so that :func:`nested_by_key` finds its way back.
    """
    escaped = quote(key, safe="").replace(".", "%2E")
    return {f"{prefix}{escaped}.{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}


def nested_by_key(prefix: str, state: Arrays) -> dict[str, dict[str, Arrays]]:
    """Key -> part -> named arrays, of all in ``state`` under ``prefix``."""
    found: dict[str, dict[str, Arrays]] = {}
    for full, array in state.items():
        if full.startswith(prefix):
            escaped, part, name = full.removeprefix(prefix).split(".", 2)
            found.setdefault(unquote(escaped), {}).setdefault(part, {})[name] = array
    return found


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
            self._sums[name], error = _two_sum(self._sums[name], array)
            self._errors[name] = self._errors[name] + error

    def without(self, own: Arrays) -> Arrays:
        left: Arrays = {}
        for name, total in self._sums.items():
            rest, error = _two_sum(total, -own[name]) if name in own else (total, np.zeros(()))
            left[name] = np.asarray(rest + (self._errors[name] + error))
        return left


def _two_sum(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """fl(a + b) and what the rounding lost, exactly."""
    total = np.asarray(a + b)
    moved = total - a
    return total, np.asarray((a - (total - moved)) + (b - moved))
