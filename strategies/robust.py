"""Robust aggregation: combine the replies of a round so that a minority of Byzantine ones has a bounded influence.

A Byzantine node sends whatever it likes; a single such reply can move a mean anywhere. Lamport, Shostak and Pease, The
Byzantine Generals Problem, 1982, gave these nodes their name; Blanchard, El Mhamdi, Guerraoui and Stainer, Machine
Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017 (https://arxiv.org/abs/1703.02757), show
that no linear combination of the replies tolerates one of them, and select the replies that have the most similar
neighbours: Krum and multi-Krum. Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning: Towards
Optimal Statistical Rates, ICML 2018 (https://arxiv.org/abs/1803.01498), Definitions 1 and 2: the coordinate-wise median
and trimmed mean.

Flower's ``FedMedian``, ``FedTrimmedAvg``, ``Krum`` and ``MultiKrum`` are whole strategies. They give trained parameters
the same values up to rounding, with three exceptions: ``MultiKrum`` weights the replies that it selects by their
numbers of examples; ``FedTrimmedAvg`` cuts ⌊β · n⌋ values at each end, even if that is 0, while a fraction here cuts at
least one; and Flower's distances include buffers and integers. These are parts that combine with other strategies of
this package, samplers and server optimizers, and refuse a round that has too few replies for the promise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, fsum, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .aggregation import Aggregate, IntegerPolicy, RunningMean, StreamingMean
from .arrays import Arrays, Buffers, check_alike, check_kinds, is_float
from .checks import require_integer
from .records import TooFewRepliesError

#: How many values of every reply are compared at a time.
BLOCK = 2**14


class RobustAggregation(ABC):
    """How a strategy combines the replies of a round in place of their weighted mean.

    The weights of replies are ignored: nodes report their number of examples themselves, so a Byzantine node could
    choose its weight. Metrics are combined by :meth:`middle`, also without weights.

    Memory: the server keeps all replies of a round (in hierarchical strategies, those of all clusters) until its end.
    For n replies of a model these are n copies of it in its own dtypes. Combining them takes one more copy for the
    result (three of a float32 model in multi-Krum, which averages in float64), n² distances in Krum and
    multi-Krum, and arrays of n times :data:`BLOCK` values.

    The number of Byzantine replies, f, counts replies. If a sampler draws a Byzantine node several times in a round,
    each of its replies counts.
    """

    @abstractmethod
    def required(self, replies: int) -> int:
        """The number of replies, at least 1, without which the aggregation tolerates nothing in a round of ``replies``.

        If f is a fraction, it depends on ``replies`` (≥ 1).
        """

    @abstractmethod
    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy, buffers: Buffers) -> Arrays:
        """The aggregate of at least :meth:`required` replies, as new arrays.

        Parameters
        ----------
        replies : sequence of dicts of arrays
            Finite values, in the order of the nodes' keys, or of arrival if rounds can close early. All have the names,
            shapes and dtypes of the first reply.
        integers : "newest" or "round"
            How integer and boolean arrays are combined where the aggregation averages them.
        buffers : Buffers
            Which arrays are not trained.
        """

    def middle(self, values: Sequence[float]) -> float:
        """What stands for the values of a metric, one per reply and at least one: their median.

        The metrics that choose the best round and stop a run are thereby as robust as the arrays.
        """
        return _middle_of_numbers(values, (len(values) - 1) // 2)

    def check_strategy(self, robustness_gap: str) -> None:
        """Check that a strategy passes nothing on to the nodes but what is aggregated.

        Parameters
        ----------
        robustness_gap : str
            Why a robust aggregation does not protect the strategy; empty if it does.

        Raises
        ------
        ValueError
            ``robustness_gap`` is not empty.
        """
        if robustness_gap:
            raise ValueError(
                f"aggregation = {self}: does not protect this strategy from Byzantine nodes, because {robustness_gap}"
            )

    def start(
        self,
        integers: IntegerPolicy = "newest",
        prefix: str = "",
        buffers: Buffers = Buffers(),  # noqa: B008 - immutable
    ) -> Aggregate:
        """An empty aggregate.

        Parameters
        ----------
        integers : "newest" or "round"
            See :meth:`combine`.
        prefix : str
            The beginning of the message if there are too few replies, such as "round 3".
        buffers : Buffers
            See :meth:`combine`.
        """
        return _StoredReplies(self, integers, prefix, buffers)


class _StoredReplies:
    """Copies of all replies that were added."""

    def __init__(self, aggregation: RobustAggregation, integers: IntegerPolicy, prefix: str, buffers: Buffers) -> None:
        self._aggregation = aggregation
        self._integers = integers
        self._prefix = prefix
        self._buffers = buffers
        self._replies: list[Arrays] = []
        self.total_weight = 0.0

    @property
    def count(self) -> int:
        return len(self._replies)

    @property
    def defined(self) -> bool:
        return self.count > 0

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add a copy of a reply.

        Raises
        ------
        ValueError
            Names, shapes or dtypes differ from the first reply's.
        TypeError
            An array is neither floating-point, integer nor boolean.
        """
        if self._replies:
            check_alike(self._replies[0], arrays)
        else:
            check_kinds(arrays)
        self._replies.append({name: array.copy() for name, array in arrays.items()})
        self.total_weight += float(weight)

    def result(self) -> Arrays:
        """The aggregate of the replies added so far.

        Raises
        ------
        TooFewRepliesError
            There are fewer replies than the aggregation needs.
        """
        needed = self._aggregation.required(max(self.count, 1))
        if self.count < needed:
            prefix = self._prefix and f"{self._prefix}: "
            raise TooFewRepliesError(
                f"{prefix}{self.count} usable replies, but {self._aggregation} needs at least {needed}; sample more "
                "nodes, or assume fewer Byzantine ones"
            )
        return self._aggregation.combine(self._replies, self._integers, self._buffers)


@dataclass(frozen=True)
class BoundedByzantine(RobustAggregation):
    """A robust aggregation that tolerates a given number of Byzantine replies, f.

    Parameters
    ----------
    byzantine : int or float
        f, or a fraction of the replies of a round, ≥ 0 and below 0.5; f is then rounded down, but at least 1 if the
        fraction is above 0.

    Raises
    ------
    ValueError
        ``byzantine`` is out of range.
    """

    byzantine: int | float

    def __post_init__(self) -> None:
        below = inf if isinstance(self.byzantine, int) else 0.5
        if isinstance(self.byzantine, bool) or not 0 <= self.byzantine < below:
            raise ValueError(
                f"byzantine = {self.byzantine!r}: must be a whole number of replies, at least 0, or a fraction of "
                "them, such as 0.2, at least 0 and below 0.5"
            )

    def count_byzantine(self, replies: int) -> int:
        """f in a round of ``replies``."""
        if isinstance(self.byzantine, int) or self.byzantine == 0:
            return int(self.byzantine)
        return max(1, floor(self.byzantine * replies + 1e-9))  # 0.29 · 100 is below 29

    def middle(self, values: Sequence[float]) -> float:
        """The mean of the values without the f largest and the f smallest; their median if there are fewer than 2f + 1.

        If f is a fraction, it is one of these replies.
        """
        return _middle_of_numbers(values, min(self.count_byzantine(len(values)), (len(values) - 1) // 2))


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

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy, buffers: Buffers) -> Arrays:
        return _middle(replies, (len(replies) - 1) // 2)


@dataclass(frozen=True)
class TrimmedMean(BoundedByzantine):
    """The mean of every parameter over the replies without the f largest and the f smallest values.

    While at most f replies are Byzantine, every value lies between honest ones. A round needs 2f + 1 replies. With f =
    0 it is the unweighted mean. The values are averaged in ascending order, so that the result does not depend on the
    order of the replies.

    It is unweighted, as in the paper (Definition 2, where the fraction is called β). Integer and boolean arrays have
    the lower median, as in :class:`Median`. For its memory see :class:`RobustAggregation`.

    For the parameter ``byzantine`` see :class:`BoundedByzantine`.
    """

    def required(self, replies: int) -> int:
        return 2 * self.count_byzantine(replies) + 1

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy, buffers: Buffers) -> Arrays:
        return _middle(replies, self.count_byzantine(len(replies)))


def _middle(replies: Sequence[Arrays], cut: int) -> Arrays:
    """The mean of every value without the ``cut`` largest and the ``cut`` smallest."""
    return {name: _middle_of([reply[name] for reply in replies], cut) for name in replies[0]}


def _middle_of_numbers(values: Sequence[float], cut: int) -> float:
    kept = sorted(values)[cut : len(values) - cut]
    return fsum(kept) / len(kept)


def _middle_of(arrays: Sequence[NDArray[Any]], cut: int) -> NDArray[Any]:
    flat = [array.reshape(-1) for array in arrays]
    result = np.empty_like(flat[0])
    for start in range(0, result.size, BLOCK):
        block = np.stack([array[start : start + BLOCK] for array in flat], axis=1)
        block.sort(axis=1)
        if is_float(result):
            mean = RunningMean()  # in float64 and of ascending values: rounding never leads out of their range
            for rank in range(cut, len(arrays) - cut):
                mean.add(block[:, rank].astype(np.float64), 1.0)
            result[start : start + BLOCK] = mean.result(np.float64)
        else:
            result[start : start + BLOCK] = block[:, (len(arrays) - 1) // 2]
    return result.reshape(arrays[0].shape)


@dataclass(frozen=True)
class Krum(BoundedByzantine):
    """The reply with the smallest sum of squared distances to its n − f − 2 nearest other replies.

    The distance is the Euclidean one over all parameters. Of replies with equal sums, the first is selected. The
    parameters are those of a single reply, bit for bit. Buffers, integer and boolean arrays, which the distance does
    not see, are combined over all replies as in :class:`TrimmedMean` if f > 0. A round needs 2f + 3 replies. For its
    memory see :class:`RobustAggregation`.

    For the parameter ``byzantine`` see :class:`BoundedByzantine`.
    """

    def required(self, replies: int) -> int:
        return 2 * self.count_byzantine(replies) + 3

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy, buffers: Buffers) -> Arrays:
        f = self.count_byzantine(len(replies))
        trained = [buffers.parameters(reply) for reply in replies]
        return _mean_of([int(np.argmin(krum_scores(trained, f)))], replies, f, integers, trained[0])


@dataclass(frozen=True)
class MultiKrum(BoundedByzantine):
    """The unweighted mean of the m replies that Krum scores best.

    With m = 1 it is :class:`Krum`; with m = n it is the unweighted mean of the parameters. Buffers, integer and boolean
    arrays are combined as in :class:`Krum`; with f = 0, as in
    :class:`~fedapps.strategies.aggregation.StreamingMean` over the selected replies.

    Parameters
    ----------
    byzantine : int or float
        As in :class:`BoundedByzantine`.
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

    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy, buffers: Buffers) -> Arrays:
        f = self.count_byzantine(len(replies))
        trained = [buffers.parameters(reply) for reply in replies]
        best = np.argsort(krum_scores(trained, f), kind="stable")[: self.selected or len(replies) - f]
        return _mean_of(sorted(best.tolist()), replies, f, integers, trained[0])


def _mean_of(
    selected: Sequence[int], replies: Sequence[Arrays], f: int, integers: IntegerPolicy, parameters: Arrays
) -> Arrays:
    """The mean of the selected replies. If f > 0, what is no parameter is the trimmed mean of all replies."""
    if len(selected) == 1:  # the mean of one reply, without the memory that a mean takes
        result = {name: array.copy() for name, array in replies[selected[0]].items()}
    else:
        mean = StreamingMean(integers)
        for index in selected:
            mean.add(replies[index], 1.0)
        result = mean.result()
    rest = [{name: array for name, array in reply.items() if name not in parameters} for reply in replies]
    return {**result, **_middle(rest, f)} if f else result


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
