"""The difference of two methods over seeds: a sign-flip test and a confidence interval.

Nodes, sessions and stages of one run share its training and are not independent; runs with different seeds are. The
unit is therefore the seed: two methods with the same seed give one difference.

On recorded data, all seeds share the data. The results then hold for new training runs on these data, not for other
data. Blocks of recorded trials, averaged over seeds, are no alternative unit: they share the training runs, so their
differences are not independent either. With two names for one method, seven blocks of two test trials and 20 % of the
variance between seeds, sign flips of blocks give p <= .05 in 28 % of comparisons.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import permutation_test, t

#: By method and metric, one value per seed.
Values = Mapping[str, Mapping[str, Sequence[float]]]

#: Up to this number of sign patterns (16 seeds), the test uses all of them; beyond it, it draws this number.
_PATTERNS = 2**16


@dataclass(frozen=True)
class Difference:
    """The paired difference of two methods over seeds.

    Attributes
    ----------
    mean : float
    low, high : float or None
        Limits of the confidence interval; ``None`` with one seed.
    """

    mean: float
    low: float | None
    high: float | None


def seed_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The values of runs, by method and metric.

    Parameters
    ----------
    rows : iterable of mappings
        One row per run: ``method`` and ``metrics``, in the same order of seeds for each method.

    Returns
    -------
    dict
        One value per seed. Metrics that a run of the method lacks, such as the rounds to a target that was not reached,
        are omitted.
    """
    runs: dict[str, list[Mapping[str, float]]] = {}
    for row in rows:
        runs.setdefault(row["method"], []).append(row["metrics"])
    return {
        method: {
            name: [float(metrics[name]) for metrics in of_method]
            for name in of_method[0]
            if all(name in metrics for metrics in of_method)
        }
        for method, of_method in runs.items()
    }


def paired_difference(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Difference:
    """The mean of a - b over seeds with its confidence interval (Student's t).

    Parameters
    ----------
    a, b : sequence of float
        One value per seed, in the same order of seeds.
    confidence : float
        In (0, 1).
    """
    differences = np.subtract(a, b)
    mean = float(differences.mean())
    if len(differences) < 2:
        return Difference(mean, None, None)
    width = half_width(differences.tolist(), confidence)
    return Difference(mean, mean - width, mean + width)


def half_width(values: Sequence[float], confidence: float = 0.95) -> float:
    """Half the width of the confidence interval of a mean (Student's t); at least two values are needed."""
    count = len(values)
    return float(t.ppf((1 + confidence) / 2, count - 1) * np.std(values, ddof=1) / sqrt(count))


def sign_flip_p(differences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Two-sided p-values of the sign-flip test (R. A. Fisher, The Design of Experiments, 1935, Section 21).

    If two methods are the same, the difference of each seed has either sign with equal probability. The p-value is the
    share of sign patterns with which the mean is at least as far from 0 as the observed mean.

    Parameters
    ----------
    differences : ndarray [..., S]
        Differences of S seeds.

    Returns
    -------
    ndarray [...]
        Exact up to 16 seeds. No p-value is below 2^(1 - S), so that of one seed is 1.
    """
    if differences.shape[-1] < 2:
        return np.ones(differences.shape[:-1])
    found = permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=_PATTERNS, axis=-1, random_state=0
    )
    return np.asarray(found.pvalue)
