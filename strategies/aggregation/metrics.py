"""Means of the metrics in replies."""

import math
from collections.abc import Callable, Mapping
from typing import Literal, Protocol, get_args

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from .. import wire
from ..checks import LARGEST_COUNT, MAX_NAME_LENGTH, is_valid_name, truncate

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
        :meth:`~fedapps.strategies.aggregation.robust.RobustAggregation.middle`. Weights and counts are then ignored,
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
            if isinstance(rule, str) and rule not in get_args(MeanRule):
                allowed = ", ".join(map(repr, get_args(MeanRule)))
                raise ValueError(f"metric_means[{name!r}] = {rule!r}: must be one of {allowed}")
            if _is_total(name):
                raise ValueError(f"metric_means[{name!r}] = {rule!r}: this metric is always summed, remove it")
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._totals: dict[str, float] = {}
        self._statistics: dict[str, NDArray[np.float64]] = {}

    def add(self, metrics: MetricRecord, weight: float) -> None:
        """Add the metrics of one reply of weight ``weight`` > 0."""
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
            elif name != wire.NUM_EXAMPLES and not _can_be_averaged(value, (rules or {}).get(name)):
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


def _can_be_averaged(value: float, rule: MetricRule | None) -> bool:
    return abs(value) <= _LARGEST and not (rule == "geometric" and value < 0)  # NaN is not


def _are_sums(statistics: object, size: int) -> bool:
    """Whether these are the statistics of a pooled metric that needs ``size`` of them."""
    if not isinstance(statistics, list) or len(statistics) != size:
        return False
    return all(0 <= number <= _LARGEST for number in statistics)  # NaN is not


def _is_total(name: str) -> bool:
    return name == wire.NUM_EXAMPLES or name.endswith(wire.COUNT_SUFFIX)
