"""The pairs of methods that a comparison tests.

With few methods, all pairs are tested. With many, each additional test weakens the others through Holm's correction, so
every method is tested only against the best one and against the reference, the method named first.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

#: Largest number of methods for which all pairs are tested.
ALL_PAIRS_UP_TO = 7

Pair = tuple[str, str]


def chosen_pairs(means: Mapping[str, float], better: int = -1) -> list[Pair]:
    """The pairs to test, without duplicates.

    Parameters
    ----------
    means : mapping
        Mean of each method, in the order in which the methods were named.
    better : int
        1 if higher is better, otherwise lower is.

    Returns
    -------
    list of (str, str)
        All pairs for up to ``ALL_PAIRS_UP_TO`` methods. For more, the first of a pair is the method with the
        best mean or the method named first.
    """
    if len(means) <= ALL_PAIRS_UP_TO:
        return list(combinations(means, 2))
    best, first = (max if better > 0 else min)(means, key=means.__getitem__), next(iter(means))
    pairs = [(best, other) for other in means if other != best]
    return pairs + [(first, other) for other in means if other not in (best, first) and best != first]


def scheme(pairs: Sequence[Pair]) -> str:
    """A sentence that says which pairs were tested; empty if all pairs were."""
    methods = {method for pair in pairs for method in pair}
    if len(pairs) == len(methods) * (len(methods) - 1) // 2:
        return ""
    best, *first = dict.fromkeys(a for a, _ in pairs)
    reference = f" and against {first[0]} (named first)" if first else ", which is also the one named first"
    return f"every method against {best} (best mean){reference}; Holm's correction over {len(pairs)} tests"
