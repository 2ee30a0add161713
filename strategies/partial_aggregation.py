"""Partial aggregation: some parameters travel and are averaged, the others never leave their node.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818.
Liang et al., Think Locally, Act Globally (LG-FedAvg), 2020, https://arxiv.org/abs/2001.01523.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO
from math import prod
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from .base import BaseStrategy
from .samplers import UniformFraction


class PartialAggregation(BaseStrategy):
    """FedAvg over the ``shared`` parameters of a model whose others stay on the nodes.

    A client of this project keeps them by itself. One in the manner of Flower's template, which loads and returns whole
    models, does with the mod ``clients.keep_private``: ``ClientApp(mods=[keep_private(Net)])``. On the wire this is
    :class:`BaseStrategy`; it only insists that something is shared and something private, before the first round.

    Parameters
    ----------
    shared : sequence of str
        Glob patterns of the parameters that travel, at least one; each must match a parameter, and together they must
        leave one out.
    fraction_train, fraction_evaluate : float
        As in Flower's ``FedAvg``, whose place it takes in an app: the shares of the nodes that train and evaluate,
        in [0, 1]. A ``sampler`` or ``evaluate_sampler`` goes before them.
    **base
        As in :class:`BaseStrategy`.
    """

    def __init__(
        self, *, shared: Sequence[str], fraction_train: float = 1.0, fraction_evaluate: float = 1.0, **base: Any
    ) -> None:
        samplers = {"sampler": UniformFraction(fraction_train), "evaluate_sampler": UniformFraction(fraction_evaluate)}
        super().__init__(shared=shared, **{**samplers, **base})
        if not self.shared:
            raise ValueError("shared = []: nothing would travel; for local training only use BaseStrategy(shared=[])")
        self._travelling = self._staying = ""

    def summary(self) -> None:
        log(INFO, "\t├── shared: %s; private: %s", self._travelling, self._staying)
        super().summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *positional: Any, **named: Any) -> Result:
        """As in :class:`BaseStrategy`; ``initial_arrays`` are those of the whole model.

        Raises ``ValueError`` for a pattern that matches no parameter, and for patterns that leave none private.
        """
        shared = self.share(initial_arrays)
        private = ArrayRecord({name: array for name, array in initial_arrays.items() if name not in shared})
        if not private:
            raise ValueError(
                f"shared = {list(self.shared)}: matches every parameter, so that none would be private; use "
                f"BaseStrategy (or Flower's FedAvg), or patterns that leave some out of: {', '.join(initial_arrays)}"
            )
        self._travelling, self._staying = _size(shared), _size(private)
        return super().start(grid, initial_arrays, *positional, **named)


def _size(record: ArrayRecord) -> str:
    count = sum(prod(array.shape) for array in record.values())
    size = sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in record.values())
    return f"{count:,} parameters in {len(record)} arrays, {size:,} bytes"
