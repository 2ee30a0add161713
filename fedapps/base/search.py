"""Search ranges: the values of an option among which tuning looks for the best one."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``.

    Parameters
    ----------
    low, high : float
        Inclusive bounds, ``low < high``.
    log : bool
        Whether values are drawn uniformly on a logarithmic scale; ``low`` must then be above 0.

    Raises
    ------
    ValueError
        The bounds are not in order, or ``low`` has no logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"{self}: the lower bound must be below the upper bound")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: the lower bound of a logarithmic range must be above 0")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{',log' if self.log else ''}"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def is_near_end(self, value: float) -> bool:
        """Whether a value of the range is within a twentieth of its length, on its scale, from an end.

        A value outside it, such as a default of 0 that stands for another key, is not.
        """
        if value not in self:
            return False
        low, high, point = (log(v) if self.log else v for v in (self.low, self.high, value))
        return not 0.05 <= (point - low) / (high - low) <= 0.95


@dataclass(frozen=True)
class Around:
    """All numbers from ``value / factor`` to ``value * factor`` on a logarithmic scale, around the present value.

    Suits learning rates, whose size depends on the model and the optimizer. ``factor`` must be above 1.
    """

    factor: float

    def __str__(self) -> str:
        return f"value/{self.factor:g}..value*{self.factor:g},log"


@dataclass(frozen=True)
class Choices:
    """A few values, at least one."""

    values: tuple[bool | int | float | str, ...]

    def __str__(self) -> str:
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)

    def __contains__(self, value: object) -> bool:
        return value in self.values


Search: TypeAlias = Range | Around | Choices


def range_at(search: Search, value: Any, limits: Mapping[str, Any]) -> Range | Choices | None:
    """Return the search range of an option at its present value.

    Parameters
    ----------
    search : Search
        The declared range.
    value : float
        The present value.
    limits : mapping
        The metadata of the option, of which ``minimum`` and ``maximum`` bound a range around the value.

    Returns
    -------
    Range, Choices or None
        ``None`` if there is no range around the value, because it is 0.
    """
    if not isinstance(search, Around):
        return search
    low, high = value / search.factor, value * search.factor
    if limits.get("minimum") is not None:
        low = max(low, limits["minimum"])
    if limits.get("maximum") is not None:
        high = min(high, limits["maximum"])
    return Range(low, high, log=True) if 0 < low < high else None
