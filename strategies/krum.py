"""Krum and multi-Krum: the replies that have the most similar neighbours.

Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent,
NeurIPS 2017 (https://arxiv.org/abs/1703.02757).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, is_float
from .parameter_checks import require_integer
from .robust_aggregation import BLOCK, BoundedByzantine


@dataclass(frozen=True)
class Krum(BoundedByzantine):
    """The reply with the smallest sum of squared distances to its n − f − 2 nearest other replies.

    The distance is the Euclidean one over all floating-point arrays. Of replies with equal sums, the one whose node has
    the first key is selected. The result is a single reply, bit for bit, with its integer and boolean arrays. A round
    needs 2f + 3 replies. For its memory see :class:`RobustAggregation`.

    For the parameter ``byzantine`` see :class:`~fedapps.strategies.robust_aggregation.BoundedByzantine`.
    """

    def required(self, replies: int) -> int:
        return 2 * self.count_byzantine(replies) + 3

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy) -> Arrays:
        best = int(np.argmin(krum_scores(replies, self.count_byzantine(len(replies)))))
        return {name: array.copy() for name, array in replies[best].items()}


@dataclass(frozen=True)
class MultiKrum(BoundedByzantine):
    """The unweighted mean of the m replies that Krum scores best.

    With m = 1 it is :class:`Krum`; with m = n it is the unweighted mean. Integer and boolean arrays are combined as in
    :class:`~fedapps.strategies.aggregation.StreamingMean`, over the selected replies.

    Parameters
    ----------
    byzantine : int or float
        As in :class:`~fedapps.strategies.robust_aggregation.BoundedByzantine`.
    selected : int or None
        m ≥ 1, at most the number of replies of a round; ``None`` selects n − f, the number of honest ones.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """

    selected: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selected is not None:
            require_integer("selected", self.selected, least=1)

    def required(self, replies: int) -> int:
        return max(2 * self.count_byzantine(replies) + 3, self.selected or 0)

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy) -> Arrays:
        f = self.count_byzantine(len(replies))
        best = np.argsort(krum_scores(replies, f), kind="stable")[: self.selected or len(replies) - f]
        mean = StreamingMean(integers)
        for index in sorted(best.tolist()):
            mean.add(replies[index], 1.0)
        return mean.result()


def krum_scores(replies: Sequence[Arrays], byzantine: int) -> NDArray[np.float64]:
    """For each reply, the sum of the squared distances to its n − f − 2 nearest other replies.

    Parameters
    ----------
    replies : sequence of dicts of arrays
        n replies of equal names and shapes.
    byzantine : int
        f ≥ 0, at most n − 3.

    Returns
    -------
    array of float64
        n sums, in the order of the replies.
    """
    distances = _squared_distances(replies)
    np.fill_diagonal(distances, np.inf)  # sorts a reply behind its neighbours
    nearest = np.sort(distances, axis=1)[:, : len(replies) - byzantine - 2]
    return np.asarray(nearest.sum(axis=1))


def _squared_distances(replies: Sequence[Arrays]) -> NDArray[np.float64]:
    distances = np.zeros((len(replies), len(replies)))
    for name in (name for name, array in replies[0].items() if is_float(array)):
        flat = [reply[name].reshape(-1) for reply in replies]
        for start in range(0, flat[0].size, BLOCK):
            block = np.stack([array[start : start + BLOCK] for array in flat]).astype(np.float64)
            for index, row in enumerate(block):
                distances[index, index + 1 :] += np.square(block[index + 1 :] - row).sum(axis=1)
    return distances + distances.T
