"""Numbers with 95 % confidence intervals, and numbers, p-values, sizes and durations as text.

The interval of a mean over seeds or nodes is Student's t, that of a share of examples is Wilson's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from statistics import fmean, stdev
from typing import Any

#: Decimal units of sizes, the largest first, with their bytes.
BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
#: Whole numbers below this are written in full.
_LARGEST_WHOLE = 1e12
_MOST_DIGITS = 9
#: How far the product of a share of examples and their number is from a whole number at most.
_ROUNDING = 1e-6
#: A difference or half an interval below this share of the largest number of its column needs no digits.
NEGLIGIBLE = 1e-6
_COUNT = ".count"


def format_number(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < _LARGEST_WHOLE:
        return f"{int(value):,}".replace("-", "−")
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3e}".replace("-", "−")
    return (f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}").replace("-", "−")


def decimals(values: Iterable[float], halves: Iterable[float] = ()) -> int:
    """The decimals of a column: two significant digits of the median half width, or four of the largest value."""
    positive = sorted(half for half in halves if half > 0)
    scale = positive[len(positive) // 2] if positive else max(map(abs, values), default=0.0)
    digits = 1 if positive else 3
    return min(max(digits - math.floor(math.log10(scale)), 0), 8) if scale > 0 else 0


@dataclass(frozen=True)
class ColumnFormat:
    """One format for all numbers of a column: as many ``decimals``, or powers of ten if ``scientific``."""

    decimals: int
    scientific: bool = False

    @classmethod
    def of(cls, values: Sequence[float], halves: Sequence[float] = ()) -> ColumnFormat:
        """The format of these values, with the halves of their intervals.

        The smallest value keeps two significant digits. A column that would then need more than
        nine digits is scientific. Whole numbers below 10¹² have no decimals.
        """
        finite = [abs(value) for value in values if math.isfinite(value) and value]
        if not finite:
            return cls(0)
        largest, smallest = max(finite), min(finite)
        halves = [half for half in halves if math.isfinite(half) and half > NEGLIGIBLE * largest]
        if largest < _LARGEST_WHOLE and not any(halves) and all(value == int(value) for value in finite):
            return cls(0)
        digits = max(decimals(finite, halves), 1 - math.floor(math.log10(smallest)))
        if digits + max(math.floor(math.log10(largest)), 0) >= _MOST_DIGITS:
            return cls(3, scientific=True)
        return cls(digits)

    def __call__(self, value: float) -> str:
        """The value as text."""
        if not math.isfinite(value):
            return format_number(value)
        text = f"{value:.{self.decimals}e}" if self.scientific else f"{value:,.{self.decimals}f}"
        return text.replace("-", "\N{MINUS SIGN}")


def format_p_value(value: float, decimals: int | None = None) -> str:
    """A p-value with three significant digits or, for a column, with as many ``decimals``."""
    if not math.isfinite(value):
        return "NaN"
    return "below 0.0001" if value < 1e-4 else f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}"


def format_bytes(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit, scale in BYTE_UNITS:
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B" if math.isfinite(count) else "NaN"


def format_duration(seconds: float) -> str:
    """A duration in seconds as text."""
    if not math.isfinite(seconds):
        return "NaN"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.3g} s"


def counted(count: int, noun: str) -> str:
    """A number of things, such as "1 node" or "3 nodes"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """A number with at most four significant digits; a dash for None."""
    return "-" if value is None else f"{value:.4g}"


def format_length(metres: float) -> str:
    """A length in metres as text, in m or km."""
    return f"{metres / 1000:.3g} km" if metres >= 1000 else f"{metres:.3g} m"


def mean_of(values: Sequence[float]) -> float:
    """The mean of values, which need not be finite; NaN of infinities with both signs."""
    return fmean(values) if all(map(isfinite, values)) else sum(values) / len(values)


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
        if isfinite(value) and abs(value * count - round(value * count)) < _ROUNDING:
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


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, of a metric or of a paired difference.

    Parameters
    ----------
    mean : float
    seeds : int
        The number of seeds that count.
    sd : float or None
        Sample standard deviation over the seeds.
    low, high : float or None
        Limits of the 95 % confidence interval (Student's t); ``None`` with one seed.
    values : sequence of float
        The value of each seed, if they were kept.
    planned : int
        The number of seeds that were planned, if some of them failed; otherwise 0.
    p, p_holm : float or None
        Of a difference: p-value of the sign-flip test, and its Holm correction within the comparison.
    widest : bool
        The interval of a difference is an upper bound: it follows from both standard deviations alone.
    """

    mean: float
    seeds: int = 1
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    values: Sequence[float] = ()
    planned: int = 0
    p: float | None = None
    p_holm: float | None = None
    widest: bool = False

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = 0.95) -> Estimate:
        """The estimate from one value per seed, with an interval of a confidence in (0, 1)."""
        mean = mean_of(values)
        if len(values) < 2:
            return cls(mean, values=tuple(values))
        sd = stdev(values) if all(map(isfinite, values)) else nan
        half = half_width(sd, len(values), confidence)
        return cls(mean, len(values), sd, mean - half, mean + half, tuple(values))

    @property
    def half(self) -> float | None:
        """Half the width of the 95 % interval; ``None`` with one seed, or if no spread is known."""
        if self.low is not None and self.high is not None:
            return (self.high - self.low) / 2
        return None if self.sd is None or self.seeds < 2 else half_width(self.sd, self.seeds)

    @property
    def counted(self) -> str:
        """Such as ``(3 of 5)`` if seeds failed; otherwise empty."""
        return f"({self.seeds} of {self.planned})" if self.planned else ""

    def minus(self, other: Estimate, confidence: float = 0.95) -> Estimate:
        """The difference, paired by seed; both have one value for each seed, in the same order."""
        return Estimate.of([a - b for a, b in zip(self.values, other.values, strict=True)], confidence)

    def negated(self) -> Estimate:
        """The difference the other way round."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        values = tuple(-value for value in self.values)
        return replace(self, mean=-self.mean, low=low, high=high, values=values)


def half_width(sd: float, count: int, confidence: float = 0.95) -> float:
    """Half the width of the interval of a mean of ``count`` ≥ 2 values with the sample standard deviation ``sd``."""
    from scipy.special import stdtrit  # one seed needs no quantile, and this takes long to import

    return float(stdtrit(count - 1, (1 + confidence) / 2)) * sd / sqrt(count)
