"""Checks of the numbers that strategies and their parts take as parameters."""

from math import isfinite


def require_integer(name: str, value: int, *, least: int) -> None:
    """Raise ``ValueError`` unless a parameter is an integer of at least ``least``; booleans are not integers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} = {value!r}: must be an integer of at least {least}")


def require_positive(name: str, value: float) -> None:
    """Raise ``ValueError`` unless a parameter is finite and above 0."""
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name} = {value!r}: must be finite and above 0")
