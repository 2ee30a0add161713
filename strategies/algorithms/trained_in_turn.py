"""FedAvg of arrays of which nodes train only some, always the same or in turns.

Sun et al., Improving LoRA in Privacy-Preserving Federated Learning (FFA-LoRA), ICLR 2024,
https://arxiv.org/abs/2403.12313: all nodes keep the A of the start, and train B.
Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA (RoLoRA), 2024,
https://arxiv.org/abs/2409.02346: B is trained in odd rounds, A in even ones.
"""

from collections.abc import Sequence
from typing import Any

from ..arrays import select
from ..base import BaseStrategy


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
        ``still`` is empty, or another argument is out of range; in the first round that needs it, a pattern that
        matches no shared array.
    """

    def __init__(self, *, still: Sequence[Sequence[str]], **base: Any) -> None:
        super().__init__(**base)
        if not still:
            raise ValueError("still = []: must have the patterns of at least one round")
        self.still = tuple(tuple(patterns) for patterns in still)

    def untrained(self, server_round: int, names: Sequence[str]) -> Sequence[str]:
        return select(names, self.still[(server_round - 1) % len(self.still)])
