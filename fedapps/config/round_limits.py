"""Limits of the tracked metric by round, after which a run stops: ``5: 0.31, 10: 0.27``."""

from collections.abc import Mapping
from math import isfinite


def read_limits(text: str) -> dict[int, float]:
    """Read the key ``stop-beyond``.

    Returns
    -------
    dict of int to float
        Limits by round, counted from 1; empty for an empty text.

    Raises
    ------
    ValueError
        The text has another form, or names a round twice.
    """
    limits: dict[int, float] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        number, _, value = pair.partition(":")
        try:
            server_round, limit = int(number), float(value)
            if server_round < 1 or server_round in limits or not isfinite(limit):
                raise ValueError
        except ValueError:
            raise ValueError(
                f"stop-beyond = {text!r}: {pair!r} is no round with its limit; write ROUND: VALUE, ROUND: VALUE with "
                "rounds from 1 on, each of them once, such as 5: 0.31, 10: 0.27"
            ) from None
        limits[server_round] = limit
    return limits


def written_limits(limits: Mapping[int, float]) -> str:
    """The text that :func:`read_limits` reads as these limits."""
    return ", ".join(f"{server_round}: {limit!r}" for server_round, limit in limits.items())
