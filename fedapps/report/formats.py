"""Numbers, p-values, sizes and durations as text."""

from __future__ import annotations

import math

#: Decimal units of sizes, the largest first, with their bytes.
BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def format_number(value: float, digits: int = 4) -> str:
    """A number with ``digits`` significant digits."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}".replace("-", "−")
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3e}".replace("-", "−")
    return (f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:#.{digits}g}").replace("-", "−")


def format_p_value(value: float) -> str:
    """A p-value with three significant digits."""
    return "below 0.0001" if value < 1e-4 else f"{value:.3g}" if math.isfinite(value) else "NaN"


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
