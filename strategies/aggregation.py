"""Means of replies: the streaming weighted mean of their arrays, and the means of their metrics.

The mean keeps no reply, so its memory is a constant number of model copies for any number of nodes. It is the
aggregation of Federated Averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629, Algorithm 1).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from numpy.typing import DTypeLike, NDArray

from . import wire
from .arrays import Arrays, Buffers, check_alike, check_kinds, in_blocks, is_discrete, is_float
from .checks import LARGEST_COUNT, MAX_NAME_LENGTH, is_valid_name, require_one_of, truncate

IntegerPolicy = Literal["newest", "round"]
#: Replies that are averaged in float32 before their mean enters the mean in float64.
GROUP = 16


class Aggregate(Protocol):
    """What a strategy adds the replies of a round to."""

    @property
    def count(self) -> int:
        """Number of replies added."""

    @property
    def total_weight(self) -> float:
        """Sum of the weights of the replies added."""

    @property
    def defined(self) -> bool:
        """Whether there is a result."""

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add one reply, which is not changed. The first reply sets names, shapes and dtypes."""

    def result(self) -> Arrays:
        """The aggregate of the replies added so far, as new arrays in the dtypes of the replies."""


class RunningMean:
    """Weighted mean of one floating-point array, by the running form m ← m − w_k/W (m − θ_k).

    float64 is averaged in float64. Other dtypes are averaged in float32 over groups of :data:`GROUP` consecutive
    replies, and the means of the groups in float64. With u = 2⁻²⁴, the unit roundoff of float32, and M the largest
    absolute value of an element over its replies, a step with the share s = w_k/W adds an error of at most
    (1 + 6 s) u M and multiplies the earlier ones by 1 − s. The error of a group, and so of the mean of any number of
    replies, is therefore below (GROUP + 6) u M ≈ 1.3 · 10⁻⁶ M before the result is rounded to its dtype. Equal values
    have no error.
    """

    __slots__ = ("_group", "_group_count", "_group_weight", "_merged", "_merged_weight")

    def __init__(self) -> None:
        self._group: NDArray[Any] | None = None  # the mean of the open group
        self._group_count, self._group_weight = 0, 0.0
        self._merged: NDArray[np.float64] | None = None  # the mean of the groups that are full
        self._merged_weight = 0.0

    def add(self, value: NDArray[Any], weight: float) -> None:
        """Add an array, which is neither kept nor changed; all must have the same shape and dtype.

        Parameters
        ----------
        value : array
            Finite, floating-point.
        weight : float
            Finite and above 0.
        """
        wide = value.dtype.itemsize > np.dtype(np.float32).itemsize
        if self._group_count == GROUP and not wide:
            self._merge()
        self._group_count += 1
        self._group_weight += float(weight)
        if self._group is None:
            self._group = value.astype(np.float64 if wide else np.float32)
        elif self._group_count == 1:
            self._group[...] = value
        else:
            fold(self._group, value, float(weight) / self._group_weight)

    def result(self, dtype: DTypeLike) -> NDArray[Any]:
        """The mean as a new array.

        Raises
        ------
        ValueError
            No array was added.
        """
        if self._group is None:
            raise ValueError("the mean of no arrays is undefined")
        result = self._group.astype(dtype)
        if self._merged is not None:
            share = self._group_weight / (self._merged_weight + self._group_weight)
            for part, merged, group in in_blocks(result, self._merged, self._group):
                mean = merged.copy()
                fold(mean, group, share)
                part[...] = mean
        return result

    def _merge(self) -> None:
        """Add the mean of the group to the mean of the groups, and begin the next group."""
        assert self._group is not None
        self._merged_weight += self._group_weight
        if self._merged is None:
            self._merged = self._group.astype(np.float64)
        else:
            fold(self._merged, self._group, self._group_weight / self._merged_weight)
        self._group_count, self._group_weight = 0, 0.0


@dataclass
class StreamingMean:
    """Weighted mean Σ w_k θ_k / Σ w_k of named arrays with the same names, shapes and dtypes.

    Floating-point arrays are averaged by the running form of the mean, m ← m − w_k/W (m − θ_k), and returned in their
    own dtype. Unlike a sum that is divided at the end, this form returns a single reply, and any number of equal
    replies, bit for bit. See :class:`RunningMean` for the precision. The bits depend on the order of the replies, which
    strategies take in the order of the nodes' keys.

    Parameters
    ----------
    integers : "newest" or "round"
        How integer and boolean arrays are combined. "newest" takes them from the reply added last. "round"
        averages and rounds to the nearest integer, halves to the even one; booleans take the weighted majority,
        False in a tie. "round" is exact while Σ w_k |θ_k − θ_1| is below 2^53.
    """

    integers: IntegerPolicy = "newest"
    count: int = field(default=0, init=False)
    total_weight: float = field(default=0.0, init=False)
    _means: dict[str, RunningMean] = field(default_factory=dict, init=False, repr=False)
    _integers: Arrays = field(default_factory=dict, init=False, repr=False)
    # Shapes and dtypes of the first reply. Its integers are the origin: differences to it are averaged.
    _template: Arrays = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        require_one_of("integers", self.integers, get_args(IntegerPolicy))

    @property
    def defined(self) -> bool:
        """Whether there is a result."""
        return self.count > 0

    def add(self, arrays: Arrays, weight: float) -> None:
        """Add one reply to the mean. The reply is neither kept nor changed.

        Parameters
        ----------
        arrays : mapping of names to arrays
            Finite values. The first reply sets names, shapes and dtypes.
        weight : float
            Finite and above 0, for example a number of examples.

        Raises
        ------
        ValueError
            The weight is out of range, or names, shapes or dtypes differ from the first reply's.
        TypeError
            An array is neither floating-point, integer nor boolean.
        """
        if not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"weight = {weight!r}: must be finite and above 0")
        if self.count == 0:
            self._begin(arrays)
        check_alike(self._template, arrays)
        self.count += 1
        self.total_weight += float(weight)
        for name, value in arrays.items():
            if name in self._means:
                self._means[name].add(value, weight)
            elif self.integers == "newest":
                self._integers[name] = value.copy()
            else:
                self._integers[name] += float(weight) * (value.astype(np.int64) - self._template[name].astype(np.int64))

    def _begin(self, arrays: Arrays) -> None:
        check_kinds(arrays)
        for name, value in arrays.items():
            averaged = is_discrete(value) and self.integers == "round"
            self._template[name] = value.copy() if averaged else np.broadcast_to(np.zeros((), value.dtype), value.shape)
            if is_float(value):
                self._means[name] = RunningMean()
            elif averaged:
                self._integers[name] = np.zeros(value.shape)

    def result(self) -> Arrays:
        """The mean of the replies added so far, as new arrays in the dtypes of the replies.

        Raises
        ------
        ValueError
            No reply was added.
        """
        if self.count == 0:
            raise ValueError("the mean of no replies is undefined")
        return {name: self._finish(name, template) for name, template in self._template.items()}

    def _finish(self, name: str, template: NDArray[Any]) -> NDArray[Any]:
        if is_float(template):
            return self._means[name].result(template.dtype)
        if self.integers == "newest":
            return self._integers[name].copy()
        offset = self._integers[name] / self.total_weight
        lower = np.floor(offset)
        integer = template.astype(np.int64) + lower.astype(np.int64)
        remainder = offset - lower
        upwards = (remainder > 0.5) | ((remainder == 0.5) & (integer % 2 != 0))
        return np.asarray(integer + upwards).astype(template.dtype)


def stretched(current: Arrays, mean: Arrays, factor: float, buffers: Buffers) -> Arrays:
    """The mean with its parameters at ``factor`` times their distance from the current ones; 1 returns it as it is."""
    if factor == 1:
        return mean
    moved = {}
    for name, array in buffers.parameters(mean).items():
        before = current[name].astype(np.float64)
        moved[name] = np.asarray(before + factor * (array - before), dtype=array.dtype)
    return {**mean, **moved}


def fold(mean: NDArray[Any], value: NDArray[Any], share: float) -> None:
    """Subtract share · (mean − value) from a mean, in place and in its dtype.

    Equal replies return bit for bit: −0 − (−0) is +0, and −0 − (+0) is −0. Adding share · (value − mean) would turn a
    mean of −0 into +0.

    Parameters
    ----------
    mean : array of float32 or float64
        Contiguous in any order of its axes.
    value : array
        Floating-point, in the shape of ``mean``.
    share : float
        In [0, 1].
    """
    for part, new in in_blocks(mean, value):
        step = np.empty_like(part)
        if new.dtype != step.dtype:  # NumPy converts a whole block faster than within a subtraction of mixed types
            np.copyto(step, new)
            new = step
        np.subtract(part, new, out=step)
        np.multiply(step, share, out=step)
        np.subtract(part, step, out=part)


MeanRule = Literal["weighted", "uniform", "geometric"]


class PooledMetric(Protocol):
    """A metric that is no mean over nodes, but a function of sums over all examples, such as BLEU of a corpus."""

    @property
    def size(self) -> int:
        """The number of sums, ≥ 1."""

    @property
    def value(self) -> Callable[[NDArray[np.float64]], float]:
        """Gives the metric, a finite number, for sums ≥ 0, a float64 array of shape [size]."""


MetricRule = MeanRule | PooledMetric
_MAX_METRICS = 1000
_MAX_NUMBERS = 100_000
_LARGEST = 1e200  # its products with counts, and their sums, are finite


class MetricMean:
    """Streaming mean of scalar metrics, and pooled metrics.

    A metric ``x`` that is reported together with ``x.count`` is weighted by that count, and the counts are summed. All
    other scalars are weighted like the reply, except ``num-examples``, which is summed. Lists (values per session or
    per class) are not averaged; they remain in the node's report. If some replies lack a metric, it is averaged over
    the others.

    Parameters
    ----------
    rules : mapping from the names of metrics to "weighted", "uniform", "geometric" or a PooledMetric, optional
        How to average a metric; "weighted" by default. With the two other words each reply has weight 1, or 0 if it
        reports ``x.count`` = 0: "uniform" is the arithmetic mean Σ x / n, "geometric" is exp(Σ log x / n) for x ≥ 0,
        which is 0 if any x is 0. A :class:`PooledMetric` is computed from the sums over replies of the list
        ``x.statistics``. The mapping can contain names that no reply reports.
    middle : function of a list of floats, optional
        What combines the values of the replies in place of their mean, such as
        :meth:`~fedapps.strategies.robust.RobustAggregation.middle`. Weights and counts are then ignored,
        but for counts of 0; a geometric mean is that of the middle logarithm, and a pooled metric is computed for each
        reply. Counts are still summed.

    Raises
    ------
    ValueError
        A rule is unknown, or a rule is given for a metric that is summed.
    """

    def __init__(
        self, rules: Mapping[str, MetricRule] | None = None, middle: Callable[[list[float]], float] | None = None
    ) -> None:
        self.count = 0
        self._middle = middle
        self._values: dict[str, list[float]] = {}
        self._rules = dict(rules or {})
        for name, rule in self._rules.items():
            if isinstance(rule, str):
                require_one_of(f"metric_means[{name!r}]", rule, get_args(MeanRule))
            if _is_total(name):
                raise ValueError(f"metric_means[{name!r}] = {rule!r}: this metric is always summed, remove it")
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._statistics: dict[str, NDArray[np.float64]] = {}

    def add(self, metrics: MetricRecord, weight: float, content: RecordDict | None = None) -> None:
        """Add the metrics of one reply of weight ``weight`` > 0; ``content`` has all records of the reply."""
        self.count += 1
        for name, value in metrics.items():
            if isinstance(value, list):
                continue
            if _is_total(name):
                self._totals[name] = self._totals.get(name, 0.0) + value
                continue
            counted = metrics.get(name + wire.COUNT_SUFFIX)
            share = float(counted) if isinstance(counted, (int, float)) else weight
            rule = self._rules.get(name, "weighted")
            if not isinstance(rule, str):
                part = np.asarray(metrics[name + wire.STATISTICS_SUFFIX], dtype=np.float64)
                if self._middle:
                    self._values.setdefault(name, []).append(float(rule.value(part)))
                else:
                    self._statistics[name] = self._statistics.get(name, np.zeros(rule.size)) + part
                continue
            if rule != "weighted" or self._middle:
                if share == 0:  # a mean over no items: its value is meaningless
                    continue
                share = 1.0
            if rule == "geometric":  # averaged as logarithms, because a product of many values would underflow
                value = math.log(value) if value != 0 else -math.inf
            if self._middle:
                self._values.setdefault(name, []).append(float(value))
                continue
            self._sums[name] = self._sums.get(name, 0.0) + share * value
            self._weights[name] = self._weights.get(name, 0.0) + share

    def result(self) -> MetricRecord:
        """Means, pooled metrics and sums over all replies so far."""
        means = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight > 0}
        if self._middle:
            means = {name: self._middle(values) for name, values in self._values.items()}
        geometric = {name: math.exp(mean) for name, mean in means.items() if self._rules.get(name) == "geometric"}
        pooled = {
            name: float(rule.value(self._statistics[name]))
            for name, rule in self._rules.items()
            if not isinstance(rule, str) and name in self._statistics
        }
        return MetricRecord({**means, **geometric, **pooled, **self._totals})

    @staticmethod
    def split(
        metrics: MetricRecord, rules: Mapping[str, MetricRule] | None = None
    ) -> tuple[MetricRecord, dict[str, float]]:
        """The metrics that can be averaged, and the values of those that cannot by their names.

        A metric is left out alone, with its count and its statistics, if one of the three is not finite, if it is
        beyond ±1e200, where sums overflow, or if it is negative and its rule is "geometric". An example is the area
        under a curve on a node that has examples of one class only.
        """
        wild: dict[str, float] = {}
        for name, value in metrics.items():
            if isinstance(value, list):
                if name.endswith(wire.STATISTICS_SUFFIX) and not all(map(math.isfinite, value)):
                    wild.setdefault(name.removesuffix(wire.STATISTICS_SUFFIX), math.nan)
            elif not _can_be_averaged(value, (rules or {}).get(name)):
                wild[name.removesuffix(wire.COUNT_SUFFIX)] = float(value)
        if not wild:
            return metrics, {}
        parts = {name + suffix for name in wild for suffix in ("", wire.COUNT_SUFFIX, wire.STATISTICS_SUFFIX)}
        return MetricRecord({name: value for name, value in metrics.items() if name not in parts}), wild

    @staticmethod
    def refusal_reason(metrics: MetricRecord, rules: Mapping[str, MetricRule] | None = None) -> str | None:
        """Why a reply with these metrics is refused, ``None`` if it is not.

        The reasons are: more than 1000 metrics or 100,000 numbers; a name that is longer than 200 characters, contains
        control characters or begins with ``server.``; a count that is negative or above 2^53; a pooled metric whose
        statistics are missing, too few or too many, negative or above 1e200. :meth:`split` leaves out what is not
        finite.
        """
        if len(metrics) > _MAX_METRICS:
            return f"{len(metrics)} metrics: at most {_MAX_METRICS} are accepted"
        numbers = sum(len(value) if isinstance(value, list) else 1 for value in metrics.values())
        if numbers > _MAX_NUMBERS:
            return f"{numbers} numbers in metrics: at most {_MAX_NUMBERS} are accepted"
        for name, value in metrics.items():
            if not is_valid_name(name) or name.startswith(wire.SERVER_METRICS_PREFIX):
                shown = truncate(repr(name), MAX_NAME_LENGTH)
                reserved = wire.SERVER_METRICS_PREFIX
                return f"metric {shown}: must have a short, printable name that does not begin with {reserved!r}"
            if isinstance(value, list):
                continue
            rule = (rules or {}).get(name)
            if name.endswith(wire.COUNT_SUFFIX) and (value < 0 or LARGEST_COUNT < value < math.inf):
                bound = "at least 0" if value < 0 else "at most 2^53"
                return f"metric {name!r} is {value}, but a count is {bound}"
            if rule is not None and not isinstance(rule, str):
                statistics = name + wire.STATISTICS_SUFFIX
                if not _are_sums(metrics.get(statistics), rule.size):
                    return f"metric {statistics!r}: must be a list of {rule.size} numbers from 0 to {_LARGEST:g}"
        return None


class MetricsOfReplies(MetricMean):
    """The metrics that a function computes from the contents of all replies, as in Flower's strategies.

    Parameters
    ----------
    of_replies : function of a list of RecordDict and a str
        Gets the contents, which the server keeps without their arrays, and ``weighted_by_key``.
    weighted_by_key : str
        The name of the metric that weights replies.
    """

    def __init__(self, of_replies: Callable[[list[RecordDict], str], MetricRecord], weighted_by_key: str) -> None:
        super().__init__()
        self._of_replies, self._key = of_replies, weighted_by_key
        self._contents: list[RecordDict] = []

    def add(self, metrics: MetricRecord, weight: float, content: RecordDict | None = None) -> None:
        self.count += 1
        records = (content or RecordDict({wire.METRICS: metrics})).items()
        self._contents.append(RecordDict({name: r for name, r in records if not isinstance(r, ArrayRecord)}))

    def result(self) -> MetricRecord:
        return self._of_replies(self._contents, self._key) if self._contents else MetricRecord()


def _can_be_averaged(value: float, rule: MetricRule | None) -> bool:
    return abs(value) <= _LARGEST and not (rule == "geometric" and value < 0)  # NaN is not


def _are_sums(statistics: object, size: int) -> bool:
    """Whether these are the statistics of a pooled metric that needs ``size`` of them."""
    if not isinstance(statistics, list) or len(statistics) != size:
        return False
    return all(0 <= number <= _LARGEST for number in statistics)  # NaN is not


def _is_total(name: str) -> bool:
    return name == wire.NUM_EXAMPLES or name.endswith(wire.COUNT_SUFFIX)
