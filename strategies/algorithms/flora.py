"""The server of FLoRA: the exact mean of the products of low-rank adapters, folded into the frozen weights.

Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations, NeurIPS 2024,
https://arxiv.org/abs/2409.05976, Section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from ..aggregation import Aggregate
from ..arrays import Arrays, from_record, to_record
from ..base import BaseStrategy
from ..checks import require_integer
from ..replies import Reply

_SHUFFLE = 0x666C6F7261  # the purpose in the key of these draws
#: Why errors of compression must not be kept.
NEW_FACTORS = "each round begins with new factors, to which the compression errors of the last do not belong"


@dataclass(frozen=True)
class _Layer:
    a: str
    b: str
    weight: str


class Flora(BaseStrategy):
    """FedAvg that averages the products B A of adapters, not their factors.

    Stacking the factors of all nodes, [B_1 B_2 ...] [A_1; A_2; ...], gives the sum of the products exactly, also of
    unequal ranks. The server adds their weighted mean to the frozen weight, W ← W + scale · Σ w_k B_k A_k / Σ w_k, and
    all nodes begin the next round with new factors: B = 0, and A with the same numbers in a new random order. The
    product of trained factors that a run starts from is added to the weight, too. Nodes receive the weights of the
    adapted layers beside the other shared arrays, and return all but these.

    A node of a lower rank has zeros in the further rows of A and columns of B, which stay zero in training.

    Parameters
    ----------
    a, b, weight : str
        The names of A ``[r, n]``, B ``[m, r]`` and the frozen weight W ``[m, n]``, which must be shared, too. With a
        ``*``, which stands for the same text in all three, they name those of several layers.
    scale : float
        Finite and not 0.
    seed : int
        ≥ 0, of the order of A.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`.

    Raises
    ------
    ValueError
        An argument is out of range, ``privacy`` is central differential privacy, ``aggregation`` is robust, or
        ``compression`` keeps errors.
    """

    privacy_gap: ClassVar[str] = "it also takes the products of each node's adapters, without noise"
    robustness_gap: ClassVar[str] = "it also averages the products of the nodes' adapters"

    def __init__(self, *, a: str, b: str, weight: str, scale: float = 1.0, seed: int = 0, **base: Any) -> None:
        super().__init__(**base)
        if self.compression and self.compression.error_feedback:
            raise ValueError(f"compression = {self.compression}: cannot be used, because {NEW_FACTORS}; use BFloat16()")
        if not isfinite(scale) or scale == 0:
            raise ValueError(f"scale = {scale!r}: must be finite and not 0")
        require_integer("seed", seed, least=0)
        self.a, self.b, self.weight, self.scale, self.seed = a, b, weight, scale, seed
        self._layers: list[_Layer] = []
        self._products: dict[str, NDArray[np.float64]] = {}
        self._weight = 0.0

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *positional: Any, **named: Any) -> Result:
        """As in :class:`~fedapps.strategies.base.BaseStrategy`. Raises ``ValueError`` if a layer is incomplete."""
        arrays = from_record(initial_arrays)
        for layer in self._layers_in(arrays):
            weight, b = arrays[layer.weight], arrays[layer.b]
            arrays[layer.weight] = (weight + self.scale * (b.astype(np.float64) @ arrays[layer.a])).astype(weight.dtype)
            arrays[layer.b] = np.zeros_like(b)
        return super().start(grid, to_record(arrays), *positional, **named)

    def begin_round(self, server_round: int, arrays: Arrays, config: ConfigRecord, grid: Grid) -> None:
        self._layers = self._layers or self._layers_in(arrays)
        self._products = {layer.weight: np.zeros(arrays[layer.weight].shape) for layer in self._layers}
        self._weight = 0.0

    def untrained(self, server_round: int, names: Sequence[str]) -> Sequence[str]:
        return [layer.weight for layer in self._layers]

    def further_sizes(self, reply: Reply) -> dict[str, float]:
        # A product grows with the square of its factors. ‖B A‖² = Σ (BᵀB) ∘ (A Aᵀ), matrices of the size of the rank
        factors = (self._factors(reply, layer) for layer in self._layers)
        square = sum(float(np.sum((b.T @ b) * (a @ a.T))) for b, a in factors)
        return {"the products of adapters": sqrt(max(square, 0.0))}

    def fold(self, reply: Reply, aggregate: Aggregate) -> None:
        super().fold(reply, aggregate)
        self._weight += reply.weight
        for layer in self._layers:
            b, a = self._factors(reply, layer)
            # The mean of the products, Σ w_k B_k A_k, not the product of the means
            self._products[layer.weight] += reply.weight * (b @ a)

    def close_round(self, server_round: int, current: Arrays, aggregate: Arrays) -> Arrays:
        if not aggregate:
            return current
        before, mean = dict(current), dict(aggregate)
        for layer in self._layers:
            del before[layer.a], before[layer.b], mean[layer.a], mean[layer.b]
            weight = before[layer.weight] = self._current[layer.weight]
            change = self.scale * self._products[layer.weight] / self._weight
            mean[layer.weight] = np.asarray(weight + change, dtype=weight.dtype)
        closed = super().close_round(server_round, before, mean)
        for number, layer in enumerate(self._layers):
            order = np.random.default_rng([self.seed, server_round, number, _SHUFFLE])
            a = current[layer.a]
            closed[layer.a] = order.permutation(a.reshape(-1)).reshape(a.shape)
            closed[layer.b] = np.zeros_like(current[layer.b])
        return closed

    @staticmethod
    def _factors(reply: Reply, layer: _Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return reply.arrays[layer.b].astype(np.float64), reply.arrays[layer.a].astype(np.float64)

    def _layers_in(self, arrays: Arrays) -> list[_Layer]:
        """The adapted layers of a model. Raises ``ValueError`` if there are none, or one lacks B or W."""
        start, star, end = self.a.partition("*")
        layers = []
        for name in arrays:
            if not (name.startswith(start) and name.endswith(end) if star else name == self.a):
                continue
            middle = name[len(start) : len(name) - len(end)] if star else ""
            layer = _Layer(name, self.b.replace("*", middle), self.weight.replace("*", middle))
            if lacking := [other for other in (layer.b, layer.weight) if other not in arrays]:
                raise ValueError(f"{name}: {', '.join(lacking)} of the same layer must be shared, too")
            layers.append(layer)
        if not layers:
            raise ValueError(f"a = {self.a!r}: names no shared array; there are {', '.join(arrays)}")
        return layers
