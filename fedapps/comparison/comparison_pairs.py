"""Which pairs of methods a comparison tests.

All of them while they are few. Among many, most pairs answer nobody's question, and Holm's correction makes every
test pay for them: then each method meets the best one and the one that was named first, the reference.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations

#: The largest number of methods of which all pairs are tested.
FEW = 7

Pair = tuple[str, str]


def chosen_pairs(means: Mapping[str, float]) -> list[Pair]:
    """The pairs to test, no pair twice. ``means`` are those of each method's errors, in the order of the methods.

    Beyond ``FEW`` methods the first of a pair is the method with the lowest mean, or else the one named first.
    """
    if len(means) <= FEW:
        return list(combinations(means, 2))
    best, first = min(means, key=means.__getitem__), next(iter(means))
    pairs = [(best, other) for other in means if other != best]
    return pairs + [(first, other) for other in means if other not in (best, first) and best != first]


def scheme(pairs: Sequence[Pair]) -> str:
    """What :func:`chosen_pairs` did, in words; empty where all pairs of the methods are there."""
    methods = {method for pair in pairs for method in pair}
    if len(pairs) == len(methods) * (len(methods) - 1) // 2:
        return ""
    best, *first = dict.fromkeys(a for a, _ in pairs)
    reference = f" and against {first[0]} (named first)" if first else ", also the one named first"
    return f"every method against {best} (lowest mean){reference}; Holm's correction over these {len(pairs)} tests"
