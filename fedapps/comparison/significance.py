"""Paired tests between methods: Wilcoxon's signed-rank test with Holm's correction, and sign counts per node.

Sessions of the same driver are not independent, so the p-values are too small by an unknown factor. The number of nodes
with a negative and a positive mean difference is the conservative alternative.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from .comparison_pairs import chosen_pairs

#: Metrics to test, if nodes report them: one value per node, and one value per session.
_PER_NODE = ("test.elbo", "test.excess", "test.error_1.5s")
_PER_SESSION = ("closed_loop.cost", "closed_loop.distance_at_start", "closed_loop.time_to_lane_change")

#: One value per session or stage. Values of two methods with the same key (seed, node, index) form a pair.
Sample = Mapping[tuple[int, str, int], float]


@dataclass(frozen=True)
class PairedTest:
    """Two-sided test of method ``a`` against method ``b``.

    Attributes
    ----------
    metric, a, b : str
        The metric and the two methods.
    n : int
        Number of pairs.
    median_difference : float
        Median of a - b over the pairs.
    p, p_holm : float
        p-value, and its Holm correction over all tests of the metric.
    nodes_lower, nodes_higher : int
        Number of nodes whose mean difference is negative or positive.
    """

    metric: str
    a: str
    b: str
    n: int
    median_difference: float
    p: float
    p_holm: float
    nodes_lower: int
    nodes_higher: int


def all_tests(rows: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    """The paired tests of a comparison. Holm's correction is applied to each metric separately.

    Parameters
    ----------
    rows : sequence of mappings
        One row per run: ``method``, ``seed`` and ``nodes``, each node with ``node`` and ``metrics`` (a number, or one
        number per session). Runs with stages also have ``on_stages``: by metric and node, the error on each stage
        directly after training on it.
    methods : sequence of str
        The methods to compare.

    Returns
    -------
    list of dict
        The fields of :class:`PairedTest`.
    """
    tests: list[dict[str, Any]] = []
    on_stages = dict.fromkeys(name for row in rows for name in row.get("on_stages", {}))
    for metric in (*on_stages, *_PER_NODE, *_PER_SESSION):
        samples = {method: sample for method in methods if (sample := _sample(rows, method, metric))}
        if metric == "closed_loop.cost":
            samples["non-proactive"] = _sample(rows, methods[0], "non_proactive.cost")
        if len(samples) > 1:
            tests += paired_tests(metric, samples)
    return tests


def paired_tests(metric: str, samples: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Test the pairs of methods from :func:`chosen_pairs`, each on the keys that both methods have.

    If all differences are 0, p = 1.
    """
    means = {method: float(np.mean(list(sample.values()))) for method, sample in samples.items() if sample}
    raw = [_compare(metric, a, b, samples[a], samples[b]) for a, b in chosen_pairs(means)]
    corrected = holm([test.p for test in raw])
    return [asdict(test) | {"p_holm": p} for test, p in zip(raw, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): p-value i of m (sorted, from 0) times m - i, made monotone, at most 1."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def _compare(metric: str, a: str, b: str, left: Sample, right: Sample) -> PairedTest:
    keys = sorted(left.keys() & right.keys())
    differences = np.array([left[key] - right[key] for key in keys])
    differences_of_node: dict[str, list[float]] = {}
    for key, difference in zip(keys, differences, strict=True):
        differences_of_node.setdefault(key[1], []).append(float(difference))
    means = [float(np.mean(values)) for values in differences_of_node.values()]
    return PairedTest(
        metric,
        a,
        b,
        n=len(keys),
        median_difference=float(np.median(differences)) if keys else 0.0,
        p=float(wilcoxon(differences).pvalue) if np.any(differences) else 1.0,
        p_holm=1.0,
        nodes_lower=sum(mean < 0 for mean in means),
        nodes_higher=sum(mean > 0 for mean in means),
    )


def _sample(rows: Sequence[Mapping[str, Any]], method: str, metric: str) -> dict[tuple[int, str, int], float]:
    found: dict[tuple[int, str, int], float] = {}
    for row in rows:
        if row["method"] != method:
            continue
        by_node = {node["node"]: node["metrics"].get(metric, []) for node in row["nodes"]}
        for node, value in (by_node | row.get("on_stages", {}).get(metric, {})).items():
            values = value if isinstance(value, list) else [value]
            found |= {(row["seed"], node, index): v for index, v in enumerate(values) if v is not None}
    return found
