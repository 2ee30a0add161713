"""95 % confidence intervals of metrics: over nodes, and over examples where a metric is a share of them."""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any

_NORMAL = 1.959963984540054  # the 97.5 % quantile of the normal distribution
_COUNT = ".count"


def mean_and_interval(values: Sequence[float]) -> dict[str, float]:
    """The ``mean`` of values, one of each of ``nodes``, and the limits ``low`` and ``high`` of its interval.

    Student's t. One value has no limits.
    """
    from scipy.stats import t

    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean, "nodes": len(values)}
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return {"mean": mean, "nodes": len(values), "low": mean - half, "high": mean + half}


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
    spread = _NORMAL**2 / count
    centre = (share + spread / 2) / (1 + spread)
    half = _NORMAL * sqrt(share * (1 - share) / count + spread / (4 * count)) / (1 + spread)
    return (0.0 if share == 0 else centre - half), (1.0 if share == 1 else centre + half)


def over_examples(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The intervals of those metrics of one evaluation that are shares of examples, by name: ``low`` and ``high``.

    These are the metrics with a count beside them, ``accuracy`` with ``accuracy.count``, whose product with it is a
    whole number. All others have no interval here.
    """
    found = {}
    for name, value in metrics.items():
        count = metrics.get(name + _COUNT)
        if not (isinstance(value, float) and isinstance(count, (int, float)) and count > 0 and 0 <= value <= 1):
            continue
        if isfinite(value) and abs(value * count - round(value * count)) < 1e-6 * count:
            low, high = share_interval(value, count)
            found[name] = {"low": low, "high": high}
    return found


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The finite single numbers among metrics, without counts."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and isfinite(value) and not name.endswith(_COUNT)
    }
