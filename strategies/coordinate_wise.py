"""Coordinate-wise median and trimmed mean.

Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML
2018 (https://arxiv.org/abs/1803.01498), Definitions 1 and 2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregation import IntegerPolicy, StreamingMean
from .arrays import Arrays, is_float
from .robust_aggregation import BLOCK, BoundedByzantine, RobustAggregation


@dataclass(frozen=True)
class Median(RobustAggregation):
    """The median of every parameter over the replies; of an even number of replies, the mean of the middle two.

    While more than half of the replies are honest, every value lies between honest ones. Unlike the mean, the median is
    not the optimum of nodes with different data, even if all are honest.

    It is unweighted, as in the paper (Definition 1). Integer and boolean arrays have the lower median, which is one of
    the values; ``integers`` does not apply. For its memory see :class:`RobustAggregation`.
    """

    def required(self, replies: int) -> int:
        return 1

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy) -> Arrays:
        return _middle(replies, (len(replies) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(BoundedByzantine):
    """The mean of every parameter over the replies without the f largest and the f smallest values.

    While at most f replies are Byzantine, every value lies between honest ones. A round needs 2f + 1 replies. With f =
    0 it is the unweighted mean. The values are averaged in ascending order, so that the result does not depend on the
    order of the replies.

    It is unweighted, as in the paper (Definition 2, where the fraction is called β). Integer and boolean arrays have
    the lower median, as in :class:`Median`. For its memory see :class:`RobustAggregation`.

    For the parameter ``byzantine`` see :class:`~fedapps.strategies.robust_aggregation.BoundedByzantine`.
    """

    def required(self, replies: int) -> int:
        return 2 * self.count_byzantine(replies) + 1

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy) -> Arrays:
        return _middle(replies, self.count_byzantine(len(replies)))


def _middle(replies: Sequence[Arrays], cut: int) -> Arrays:
    """The mean of every value without the ``cut`` largest and the ``cut`` smallest."""
    return {name: _middle_of([reply[name] for reply in replies], cut) for name in replies[0]}


def _middle_of(arrays: Sequence[NDArray[Any]], cut: int) -> NDArray[Any]:
    flat = [array.reshape(-1) for array in arrays]
    result = np.empty_like(flat[0])
    for start in range(0, result.size, BLOCK):
        block = np.stack([array[start : start + BLOCK] for array in flat], axis=1)
        block.sort(axis=1)
        if is_float(result):
            mean = StreamingMean()  # of ascending values: rounding never leads out of their range
            for place in range(cut, len(arrays) - cut):
                mean.add({"": block[:, place]}, 1.0)
            result[start : start + BLOCK] = mean.result()[""]
        else:
            result[start : start + BLOCK] = block[:, (len(arrays) - 1) // 2]
    return result.reshape(arrays[0].shape)
