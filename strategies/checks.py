"""Checks of what comes from outside: parameters of strategies; texts, counts and arrays of nodes.

A reply is checked before aggregation, so that an invalid one neither stops nor corrupts a round.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from math import inf, isfinite
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from . import wire
from .arrays import Arrays, in_blocks, is_float, last_part


def require_integer(name: str, value: int, *, least: int) -> None:
    """Raise ``ValueError`` unless a parameter is an integer of at least ``least``; booleans are not integers."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} = {value!r}: must be an integer of at least {least}")


def require_one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ``ValueError`` unless a parameter is one of the words that are allowed."""
    if not (isinstance(value, str) and value in allowed):
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(map(repr, allowed))}")


def stage_of(config: Mapping[str, object]) -> int:
    """The stage in the config of a round, 0 if it names none.

    Raises
    ------
    ValueError
        The stage is not an integer.
    """
    stage = config.get(wire.STAGE, 0)
    if not isinstance(stage, int) or isinstance(stage, bool):
        raise ValueError(f"config {wire.STAGE} = {stage!r}: must be an integer")
    return stage


def require_positive(name: str, value: float) -> None:
    """Raise ``ValueError`` unless a parameter is finite and above 0."""
    if not (isinstance(value, Real) and isfinite(value) and value > 0):
        raise ValueError(f"{name} = {value!r}: must be finite and above 0")


MAX_CHARACTERS = 4000
MAX_NAME_LENGTH = 200
#: What stands between two lines of a text.
CONTINUED = "\n  | "
_LINE_END = re.compile(r"\n(?!  \| )")


def truncate(text: str, limit: int = MAX_CHARACTERS) -> str:
    r"""Shorten a text and escape its control characters other than line ends and tabs.

    Lines after the first begin with ``"  | "``, so that no text can pass for a line of the log.

    Parameters
    ----------
    text : str
        Any text.
    limit : int
        > 0, the number of characters to keep: the first quarter from the start of the text and the rest from its end,
        where a traceback states the error.

    Returns
    -------
    str
        The text, with a note in place of characters that were left out.
    """
    if len(text) > limit:
        head = limit // 4
        text = f"{text[:head]} [... {len(text) - limit} characters left out ...] {text[head - limit :]}"
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return _LINE_END.sub(CONTINUED, shown)


def is_valid_name(text: object) -> TypeGuard[str]:
    """Whether a value from a node can be a name: a string of 1 to 200 printable characters on one line."""
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME_LENGTH and text.isprintable()


#: Above this, float64 does not represent every integer.
LARGEST_COUNT = 2**53
_DOT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_LISTED = 5


def check_arrays(expected: Arrays, received: Arrays) -> str | None:
    """Check arrays against those that a node or a run started from.

    Parameters
    ----------
    expected : dict of arrays
        The names, shapes and dtypes that there must be, and the values before.
    received : dict of arrays
        In any order.

    Returns
    -------
    str or None
        Why they must be refused, ``None`` if they are accepted. Names are checked first, then shapes, dtypes and
        values; the first kind of fault is reported.
    """
    return check_form(expected, received) or check_values(expected, received)


def check_form(expected: Arrays, received: Arrays) -> str | None:
    """Check names, shapes and dtypes only."""
    return check_names(expected, received) or _differing_form(expected, received)


def check_values(expected: Arrays, received: Arrays) -> str | None:
    """Check that all floating-point values are finite and not so far from ``expected`` that sums would overflow.

    The limit of the distance is 2^48 ≈ 2.8e14 (2^384 from float64 on). Within it, values can be subtracted, squared and
    summed over 2^30 replies or rounds: means, deviations and the moments of server optimizers stay finite. The running
    variance of a normalisation must be at least 0. Both arguments must have the same names, shapes and dtypes.
    """
    floats = {name: array for name, array in received.items() if is_float(array) and array.size}
    if negative := [n for n, a in floats.items() if last_part(n) == wire.RUNNING_VARIANCE and (a < 0).any()]:
        return f"a variance is below 0: {listing(negative)}"
    with np.errstate(over="ignore", invalid="ignore"):
        suspects = {name: array for name, array in floats.items() if not is_near(array)}
    suspects = {name: array for name, array in suspects.items() if not _max_abs(array) <= max_distance(array.dtype)}
    if not suspects:
        return None
    faults = [(name, array.size - int(np.count_nonzero(np.isfinite(array))), array) for name, array in suspects.items()]
    if any(bad for _, bad, _ in faults):
        return f"values are not finite: {listing(f'{n} ({bad} of {a.size})' for n, bad, a in faults if bad)}"
    far = {name: _distance(expected[name], array) for name, array in suspects.items()}
    moved = [f"{name} (by {by:.2g})" for name, by in far.items() if not by <= max_distance(suspects[name].dtype)]
    return f"values are too far from those sent: {listing(moved)}" if moved else None


def check_count(num_examples: object, name: str) -> str | None:
    """Check a number of examples, the metric ``name``: ``None`` if it is missing, and no boolean, text or list.

    Returns why it must be refused; ``None`` for a number above 0 and up to 2^53.
    """
    if num_examples is None:
        return f"{name} is missing"
    if isinstance(num_examples, bool) or not isinstance(num_examples, int | float | np.integer | np.floating):
        return f"{name} is {num_examples!r}, not a number"
    if num_examples > LARGEST_COUNT and num_examples != inf:
        return f"{name} is above 2^53"
    if not isfinite(num_examples):
        return f"{name} is {num_examples!r}, not finite"
    if not num_examples > 0:
        return f"{name} is {num_examples!r}, not positive"
    return None


def check_names(expected: Mapping[str, object], received: Mapping[str, object]) -> str | None:
    """Check names only."""
    if expected.keys() == received.keys():
        return None
    missing = [name for name in expected if name not in received]
    extra = [name for name in received if name not in expected]
    faults = [f"{what} {listing(names)}" for what, names in (("missing", missing), ("unexpected", extra)) if names]
    return f"array names differ: {'; '.join(faults)}"


def _differing_form(expected: Arrays, received: Arrays) -> str | None:
    shapes = [
        f"{name} is {list(received[name].shape)} instead of {list(array.shape)}"
        for name, array in expected.items()
        if received[name].shape != array.shape
    ]
    if shapes:
        return f"array shapes differ: {listing(shapes)}"
    dtypes = [
        f"{name} is {received[name].dtype} instead of {array.dtype}"
        for name, array in expected.items()
        if received[name].dtype != array.dtype
    ]
    return f"array dtypes differ: {listing(dtypes)}" if dtypes else None


def is_near(array: NDArray[Any]) -> bool:
    """Whether the sums of squares show that all values are within the limit of :func:`check_values`.

    One pass, where maxima take two. False says nothing; it is also the answer if a value is not finite.
    """
    if array.dtype not in _DOT_DTYPES:
        return False
    limit = max_distance(array.dtype) ** 2
    parts = (part.reshape(-1) for (part,) in in_blocks(array))
    return all(float(part.dot(part)) <= limit for part in parts)


def _max_abs(array: NDArray[Any]) -> float:
    """The largest absolute value, NaN if a value is NaN; unlike np.abs this allocates no memory."""
    extremes = [value for (part,) in in_blocks(array) for value in (float(part.max()), -float(part.min()))]
    return float(np.max(extremes))  # unlike Python's max this keeps NaN


@cache
def max_distance(dtype: np.dtype[Any]) -> float:
    """The limit of :func:`check_values` for a dtype of floating-point numbers."""
    working = np.finfo(np.result_type(dtype, np.float32))  # the dtype in which optimizers compute
    return float(2.0 ** (3 * min(working.maxexp, 1024) // 8))


def _distance(expected: NDArray[Any], received: NDArray[Any]) -> float:
    with np.errstate(over="ignore"):
        return float(np.abs(received - expected).max())


def listing(texts: Iterable[str], most: int = _LISTED) -> str:
    """The first texts, each shortened, and how many more there are."""
    texts = list(texts)
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(truncate(text, MAX_NAME_LENGTH) for text in texts[:most]) + more
