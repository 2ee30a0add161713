"""95 % confidence intervals of metrics: over nodes, and over examples where a metric is a share of them."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from fedapps.base.report.estimates import Estimate

_COUNT = ".count"


def mean_and_interval(values: Sequence[float]) -> dict[str, float]:
    """The ``mean`` of values, one of each of ``nodes``, and the limits ``low`` and ``high`` of its interval.

    Student's t. One value has no limits.
    """
    one = Estimate.of(values)
    limits = {} if one.low is None or one.high is None else {"low": one.low, "high": one.high}
    return {"mean": one.mean, "nodes": one.seeds, **limits}


def share_interval(share: float, count: float) -> tuple[float, float]:
    """The interval of a share of independent examples.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, 1927.

    Parameters
    ----------
    share : float
        In [0, 1].
    count : float
        The number of examples, above 0.

    Returns
    -------
    float, float
        In [0, 1].
    """
    from scipy.stats import binomtest  # takes long to import, and only few metrics are shares

    interval = binomtest(round(share * count), round(count)).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def over_examples(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The intervals of those metrics of one evaluation that are shares of examples, by name: ``low`` and ``high``.

    These are the metrics with a count beside them, ``accuracy`` with ``accuracy.count``, whose product with it is a
    whole number. All others have no interval here.
    """
    limits = {}
    for name, value in metrics.items():
        count = metrics.get(name + _COUNT)
        if not (isinstance(value, float) and isinstance(count, (int, float)) and count > 0 and 0 <= value <= 1):
            continue
        if isfinite(value) and abs(value * count - round(value * count)) < 1e-6 * count:
            low, high = share_interval(value, count)
            limits[name] = {"low": low, "high": high}
    return limits


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite single numbers among metrics, without counts."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and isfinite(value) and not name.endswith(_COUNT)
    }
