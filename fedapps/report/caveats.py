"""What the p-values and verdicts of a comparison mean, in the sentences beside their tables."""

from math import ceil, log2

#: A difference is called significant if its p-value is below this number.
SIGNIFICANT = 0.05
_ADVISED = 10


def smallest_p(seeds: int) -> float:
    """The smallest p-value that the sign-flip test can give for this number of seeds, at least 1."""
    return 2.0 ** (1 - seeds)


def needed_seeds(tests: int) -> int:
    """The number of seeds that a comparison with this number of tests needs, at least 10.

    With it, the smallest possible p-value is below ``SIGNIFICANT`` after Holm's correction.
    """
    return max(_ADVISED, ceil(1 + log2(tests / SIGNIFICANT)))


def about_tests(seeds: int, tests: int) -> str:
    """The caveat beside a table of p-values.

    Parameters
    ----------
    seeds : int
        Number of seeds.
    tests : int
        Number of tests of a metric, which Holm's correction covers.
    """
    least = smallest_p(seeds)
    corrected = min(1.0, least * tests)
    after = f" ({corrected:.3g} after Holm's correction over {tests} tests)" if tests > 1 else ""
    advice = f"; use {needed_seeds(tests)} seeds where a claim depends on it" if corrected >= SIGNIFICANT else ""
    return (
        f"Tests and intervals are paired over {_seeds(seeds)}, not over nodes or sessions. "
        f"The smallest possible p is {least:.3g}{after}{advice}."
    )


def about_claims(seeds: int) -> str:
    """The note beside a table of claims."""
    if seeds < 2:
        return f"One seed gives no verdict. Use {_ADVISED} seeds where a claim depends on it."
    return (
        f"Intervals of the paired difference over {_seeds(seeds)} have 95 % confidence, jointly over the methods that "
        "a claim names. A claim holds if its interval is above the claimed difference, fails if it is below, and is "
        "within noise otherwise."
    )


def _seeds(count: int) -> str:
    return f"{count} seed{'s' if count != 1 else ''}"
