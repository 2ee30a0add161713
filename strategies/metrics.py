"""Means of the metrics that nodes report."""

import math
from collections.abc import Mapping
from typing import Literal, get_args

from flwr.app import MetricRecord

from .sanitize import MOST_IN_NAME, is_valid_name, truncate
from .validation import LARGEST_COUNT

MetricRule = Literal["weighted", "uniform", "geometric"]
#: What the server evaluates itself has this before its name.
SERVER = "server."
_MOST_METRICS = 1000
_MOST_NUMBERS = 100_000
_LARGEST = 1e200  # times any number of any counts it is finite


class MetricMean:
    """Mean of scalar metrics, one reply at a time.

    A metric ``x`` that comes with ``x.count`` is weighted by that count, and the counts are summed; every other
    scalar is weighted like the reply; ``num-examples`` is summed. Lists (values per session or per class) are
    not averaged: they stay in the node's report. A metric missing from some replies is averaged over the others.

    Parameters
    ----------
    rules : mapping from the names of metrics to "weighted", "uniform" or "geometric", optional
        The mean of a metric, where it is not the weighted one. Under the two others each reply counts 1,
        whatever its weight, or nothing where it says ``x.count`` = 0: "uniform" is the arithmetic mean Σ x / n,
        "geometric" exp(Σ log x / n) for x ≥ 0, which is 0 as soon as one x is. A name that no reply brings is
        allowed. Raises ``ValueError`` for an unknown rule, and for the name of a metric that is summed.
    """

    def __init__(self, rules: Mapping[str, MetricRule] | None = None) -> None:
        self.count = 0
        self._rules = dict(rules or {})
        for name, rule in self._rules.items():
            if rule not in get_args(MetricRule):
                allowed = ", ".join(map(repr, get_args(MetricRule)))
                raise ValueError(f"metric_means[{name!r}] = {rule!r}: must be one of {allowed}")
            if _is_total(name):
                raise ValueError(f"metric_means[{name!r}] = {rule!r}: this metric is summed, leave it out")
        self._sums: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def add(self, metrics: MetricRecord, weight: float) -> None:
        """Fold in the metrics of one reply, whose own weight is ``weight`` > 0."""
        self.count += 1
        for name, value in metrics.items():
            if isinstance(value, list):
                continue
            if _is_total(name):
                self._totals[name] = self._totals.get(name, 0.0) + value
                continue
            counted = metrics.get(f"{name}.count")
            share = float(counted) if isinstance(counted, (int, float)) else weight
            rule = self._rules.get(name, "weighted")
            if rule != "weighted":
                if share == 0:  # a mean over nothing: its value says nothing, and 0 would make the product 0
                    continue
                share = 1.0
            if rule == "geometric":  # of logarithms, since a product of many would underflow
                value = math.log(value) if value != 0 else -math.inf
            self._sums[name] = self._sums.get(name, 0.0) + share * value
            self._weights[name] = self._weights.get(name, 0.0) + share

    def result(self) -> MetricRecord:
        """Means and totals over all replies so far."""
        means = {name: self._sums[name] / weight for name, weight in self._weights.items() if weight > 0}
        geometric = {name: math.exp(mean) for name, mean in means.items() if self._rules.get(name) == "geometric"}
        return MetricRecord({**means, **geometric, **self._totals})

    @staticmethod
    def reason_against(metrics: MetricRecord, rules: Mapping[str, MetricRule] | None = None) -> str | None:
        """Why metrics cannot be averaged, or ``None``.

        There are more than 1000 names or 100,000 numbers, a name is longer than 200 signs, has control characters or
        begins with ``server.``; a scalar is not finite or beyond ±1e200, a count negative or above 2^53, or a metric
        negative whose rule in ``rules`` is "geometric".
        """
        if len(metrics) > _MOST_METRICS:
            return f"{len(metrics)} metrics: at most {_MOST_METRICS} are taken"
        numbers = sum(len(value) if isinstance(value, list) else 1 for value in metrics.values())
        if numbers > _MOST_NUMBERS:
            return f"{numbers} numbers in metrics: at most {_MOST_NUMBERS} are taken"
        for name, value in metrics.items():
            if not is_valid_name(name) or name.startswith(SERVER):
                called = truncate(name, MOST_IN_NAME)
                return f"metric {called!r}: must have a short, printable name that does not begin with {SERVER!r}"
            if not isinstance(value, list) and (reason := _reason_against(name, value, (rules or {}).get(name))):
                return f"metric {name!r} is {reason}"
        return None


def _reason_against(name: str, value: float, rule: MetricRule | None) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, not finite"
    if abs(value) > _LARGEST:
        return f"beyond ±{_LARGEST:g}, where sums overflow"
    if name.endswith(".count") and value < 0:
        return f"{value}, but a count is at least 0"
    if name.endswith(".count") and value > LARGEST_COUNT:
        return f"{value}, but counting ends at 2^53"
    if rule == "geometric" and value < 0:
        return f"{value}, but its mean is geometric: it must be at least 0"
    return None


def _is_total(name: str) -> bool:
    return name == "num-examples" or name.endswith(".count")
