"""FedAvg of parts of a model: parameters that stay private on their node, and arrays of which nodes train only some.

Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818.
Liang et al., Think Locally, Act Globally (LG-FedAvg), 2020, https://arxiv.org/abs/2001.01523.

Sun et al., Improving LoRA in Privacy-Preserving Federated Learning (FFA-LoRA), ICLR 2024,
https://arxiv.org/abs/2403.12313: all nodes keep the A of the start, and train B.
Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA (RoLoRA), 2024,
https://arxiv.org/abs/2409.02346: B is trained in odd rounds, A in even ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import INFO
from math import prod
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from ..arrays import select
from ..base import BaseStrategy
from ..bounds import UPDATE


class PartialAggregation(BaseStrategy):
    """FedAvg over the ``shared`` parameters of a model; all other parameters stay on the nodes.

    Clients of this project keep private parameters without further code. A client like that of Flower's template, which
    loads and returns complete models, needs the mod ``fedapps.clients.guard``:
    ``ClientApp(mods=[keep_private(Net)])``. On the wire this is :class:`BaseStrategy`; in addition it checks before
    the first round that at least one parameter is shared and at least one private.

    Parameters
    ----------
    shared : sequence of str
        Glob patterns of the shared parameters, at least one. Each must match a parameter, and at least one parameter
        must match none.
    **base
        As in :class:`BaseStrategy`.

    Raises
    ------
    ValueError
        ``shared`` is empty, or another parameter is out of range.
    """

    def __init__(self, *, shared: Sequence[str], **base: Any) -> None:
        super().__init__(shared=shared, **base)
        if not self.shared:
            raise ValueError("shared = []: must name a parameter; for local training only use BaseStrategy(shared=[])")
        self._shared_size = self._kept_size = ""

    def summary(self) -> None:
        log(INFO, "\t├── sent: %s; not sent: %s", self._shared_size, self._kept_size)
        super().summary()

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *positional: Any, **named: Any) -> Result:
        """As in :class:`BaseStrategy`; ``initial_arrays`` are those of the complete model.

        Raises
        ------
        ValueError
            A pattern matches no parameter, or no parameter is private.
        """
        shared = self.share(initial_arrays)
        private = ArrayRecord({name: array for name, array in initial_arrays.items() if name not in shared})
        if not private:
            raise ValueError(
                f"shared = {list(self.shared)}: matches every parameter, so that none is private; use BaseStrategy (or "
                f"Flower's FedAvg), or patterns that do not match all of: {', '.join(initial_arrays)}"
            )
        self._shared_size, self._kept_size = _size(shared), _size(private)
        return super().start(grid, initial_arrays, *positional, **named)


def _size(record: ArrayRecord) -> str:
    count = sum(prod(array.shape) for array in record.values())
    size = sum(prod(array.shape) * np.dtype(array.dtype).itemsize for array in record.values())
    return f"{count:,} parameters in {len(record)} arrays, {size:,} bytes"


class TrainedInTurn(BaseStrategy):
    """FedAvg in which nodes receive all shared arrays, but do not train and return some of them.

    Averages are exact where what is multiplied is never trained in the same round: with A fixed, the mean of the
    products B_k A is the product of the mean of B_k and A.

    Parameters
    ----------
    still : sequence of sequences of str
        Glob patterns of the arrays that are not trained in round 1, round 2 and so on, then from the beginning. At
        least one.
    **base
        As in :class:`~fedapps.strategies.base.BaseStrategy`.

    Raises
    ------
    ValueError
        ``still`` is empty or no list of lists, or another argument is out of range; in the first round that needs it, a
        pattern that matches no shared array.
    """

    def __init__(self, *, still: Sequence[Sequence[str]], **base: Any) -> None:
        super().__init__(**base)
        if not still or any(isinstance(patterns, str) for patterns in still):
            raise ValueError(f"still = {still!r}: must have a list of patterns for each of at least one round")
        self.still = tuple(tuple(patterns) for patterns in still)

    def untrained(self, server_round: int, names: Sequence[str]) -> Sequence[str]:
        return select(names, self._still_in(server_round))

    def update_name(self) -> str:
        """The update without what is not trained in this round."""
        still = self._still_in(self.report.round)
        return f"{UPDATE} without {', '.join(still)}" if still else UPDATE

    def _still_in(self, server_round: int) -> tuple[str, ...]:
        """The patterns of the arrays that are not trained in a round."""
        return self.still[(server_round - 1) % len(self.still)]
