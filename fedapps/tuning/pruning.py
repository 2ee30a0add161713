"""The median stopping rule: a trial ends once it is worse than half of the complete trials at the same round.

Golovin et al., Google Vizier: A Service for Black-Box Optimization, KDD 2017, Section 3.2, on the values of single
rounds. A run receives its limits before it starts, so that it needs no connection to the study, on any engine.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

#: The number of complete trials from which trials are pruned.
FEWEST = 5


def median_limits(complete: Sequence[Mapping[int, float]], rounds: int) -> dict[int, float]:
    """The limits of the next trial.

    Parameters
    ----------
    complete : sequence of mapping of int to float
        The values of each complete trial by evaluated round. Values that are not finite do not count.
    rounds : int
        The number of rounds of a run; a limit of the last round would stop nothing.

    Returns
    -------
    dict of int to float
        The median value of each round that at least ``FEWEST`` complete trials evaluated, by round.
    """
    limits = {}
    for server_round in sorted({number for values in complete for number in values if number < rounds}):
        found = [values[server_round] for values in complete if server_round in values]
        finite = [value for value in found if isfinite(value)]
        if len(finite) >= FEWEST:
            limits[server_round] = median(finite)
    return limits
