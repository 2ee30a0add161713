"""Numbers, p-values, sizes, durations and reasons as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: Decimal units of sizes, the largest first, with their bytes.
BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))

#: Whole numbers below this are written in full.
_LARGEST_WHOLE = 1e12
_MOST_DIGITS = 9


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

        The smallest value keeps two significant digits, or one beside halves. A column that would then need more than
        nine digits is scientific. Whole numbers below 10¹² have no decimals.
        """
        finite = [abs(value) for value in values if math.isfinite(value) and value]
        halves = [half for half in halves if math.isfinite(half)]
        if not finite:
            return cls(0)
        largest, smallest = max(finite), min(finite)
        if largest < _LARGEST_WHOLE and not any(halves) and all(value == int(value) for value in finite):
            return cls(0)
        digits = max(decimals(finite, halves), (not any(halves)) - math.floor(math.log10(smallest)))
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
