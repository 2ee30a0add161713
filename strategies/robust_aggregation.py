"""Robust aggregation: combine the replies of a round so that a minority of Byzantine ones has a bounded influence.

A Byzantine node sends whatever it likes; a single such reply can move a mean anywhere. Lamport, Shostak and Pease, The
Byzantine Generals Problem, 1982, gave these nodes their name; Blanchard et al., Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent, NeurIPS 2017 (https://arxiv.org/abs/1703.02757), show that no
linear combination of the replies tolerates one of them. Flower's ``FedMedian``, ``FedTrimmedAvg``, ``Krum`` and
``MultiKrum`` are whole strategies with the same results; these are parts that combine with other strategies of this
package, samplers and server optimizers, and refuse a round that has too few replies for the promise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

from .aggregation import Aggregate, IntegerPolicy
from .arrays import Arrays, check_alike, check_kinds
from .round_records import TooFewRepliesError

#: How many values of every reply are compared at a time.
BLOCK = 2**14


class RobustAggregation(ABC):
    """How a strategy combines the replies of a round in place of their weighted mean.

    The weights of replies are ignored: nodes report their number of examples themselves, so a Byzantine node could
    choose its weight. Metrics are still averaged with these weights.

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
    def combine(self, replies: Sequence[Arrays], integers: IntegerPolicy) -> Arrays:
        """The aggregate of at least :meth:`required` replies, as new arrays.

        Parameters
        ----------
        replies : sequence of dicts of arrays
            Finite values, in the order of the nodes' keys; names, shapes and dtypes are those of the first reply.
        integers : "newest" or "round"
            How integer and boolean arrays are combined where the aggregation averages them.
        """

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

    def start(self, integers: IntegerPolicy = "newest", place: str = "") -> Aggregate:
        """An empty aggregate.

        Parameters
        ----------
        integers : "newest" or "round"
            See :meth:`combine`.
        place : str
            The beginning of the message if there are too few replies, such as "round 3".
        """
        return _StoredReplies(self, integers, place)


class _StoredReplies:
    """Copies of all replies that were added."""

    def __init__(self, aggregation: RobustAggregation, integers: IntegerPolicy, place: str) -> None:
        self._aggregation = aggregation
        self._integers = integers
        self._place = place
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
            place = self._place and f"{self._place}: "
            raise TooFewRepliesError(
                f"{place}{self.count} usable replies, but {self._aggregation} needs at least {needed}; sample more "
                "nodes, or assume fewer Byzantine ones"
            )
        return self._aggregation.combine(self._replies, self._integers)


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
