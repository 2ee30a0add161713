"""Paired tests between methods over seeds, with Holm's correction, and sign counts per node."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from fedapps.report.metrics import bare, describe

from .comparison_pairs import chosen_pairs
from .paired_seeds import paired_difference, seed_values, sign_flip_p

#: Metrics that are also compared with the robot without a forecaster, and the metric of that robot in the same runs.
_WITHOUT_FORECASTER = {"closed_loop.mean_cost": "non_proactive.mean_cost"}


@dataclass(frozen=True)
class Sample:
    """The values of a method in one metric.

    Attributes
    ----------
    seeds : sequence of float
        The value of the run with each seed.
    nodes : mapping
        The values of the nodes that report the metric, by seed and node.
    """

    seeds: Sequence[float]
    nodes: Mapping[tuple[int, str], float]


@dataclass(frozen=True)
class PairedTest:
    """Two-sided test of method ``a`` against method ``b``. The differences of the seeds are the sample.

    Attributes
    ----------
    metric, a, b : str
        The metric and the two methods.
    seeds : int
        Number of seeds.
    mean_difference : float
        Mean of a - b over the seeds.
    low, high : float or None
        Limits of its 95 % confidence interval (Student's t), without correction; ``None`` with one seed.
    p, p_holm : float
        p-value of the sign-flip test (:func:`.paired_seeds.sign_flip_p`), and its Holm correction over all tests of the
        metric.
    nodes_lower, nodes_higher : int
        Number of nodes whose mean difference over the seeds is negative or positive.
    """

    metric: str
    a: str
    b: str
    seeds: int
    mean_difference: float
    low: float | None
    high: float | None
    p: float
    p_holm: float
    nodes_lower: int
    nodes_higher: int


def all_tests(
    rows: Sequence[Mapping[str, Any]], methods: Sequence[str], metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """The paired tests of a comparison. Holm's correction is applied to each metric separately.

    Parameters
    ----------
    rows : sequence of mappings
        One row per run, in the same order of seeds for each method: ``method``, ``seed``, ``metrics`` (names without
        the prefix ``test.``) and ``nodes``, each node with ``node`` and ``metrics``.
    methods : sequence of str
        The methods to compare.
    metrics : sequence of str
        The metrics to test. A method without a finite value for every seed is not tested in this metric.

    Returns
    -------
    list of dict
        The fields of :class:`PairedTest`.
    """
    tests: list[dict[str, Any]] = []
    for metric in metrics:
        named = {method: _sample(rows, method, metric) for method in methods}
        if metric in _WITHOUT_FORECASTER:
            named["non-proactive"] = _sample(rows, methods[0], _WITHOUT_FORECASTER[metric])
        samples = {name: sample for name, sample in named.items() if sample}
        if metric not in _WITHOUT_FORECASTER.values():
            tests += paired_tests(metric, samples)
    return tests


def paired_tests(metric: str, samples: Mapping[str, Sample]) -> list[dict[str, Any]]:
    """Test the pairs of methods from :func:`chosen_pairs`. All samples have the same seeds."""
    means = {method: float(np.mean(sample.seeds)) for method, sample in samples.items()}
    pairs = chosen_pairs(means, describe(metric).better)
    if not pairs:
        return []
    p_values = sign_flip_p(np.array([np.subtract(samples[a].seeds, samples[b].seeds) for a, b in pairs])).tolist()
    return [
        asdict(_compare(metric, a, b, samples[a], samples[b], p, p_holm))
        for (a, b), p, p_holm in zip(pairs, p_values, holm(p_values), strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979): p-value i of m (sorted, from 0) times m - i, made monotone, at most 1."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
        corrected[index] = largest
    return corrected


def _compare(metric: str, a: str, b: str, left: Sample, right: Sample, p: float, p_holm: float) -> PairedTest:
    found = paired_difference(left.seeds, right.seeds)
    of_node: dict[str, list[float]] = {}
    for key in left.nodes.keys() & right.nodes.keys():
        of_node.setdefault(key[1], []).append(left.nodes[key] - right.nodes[key])
    means = [float(np.mean(sorted(differences))) for differences in of_node.values()]
    return PairedTest(
        metric,
        a,
        b,
        seeds=len(left.seeds),
        mean_difference=found.mean,
        low=found.low,
        high=found.high,
        p=p,
        p_holm=p_holm,
        nodes_lower=sum(mean < 0 for mean in means),
        nodes_higher=sum(mean > 0 for mean in means),
    )


def _sample(rows: Sequence[Mapping[str, Any]], method: str, metric: str) -> Sample | None:
    """The sample of a method; ``None`` if the value of a seed is missing or not finite."""
    runs = [row for row in rows if row["method"] == method]
    seeds = seed_values(runs).get(method, {}).get(bare(metric), [])
    if not seeds or not all(map(isfinite, seeds)):
        return None
    nodes = {(row["seed"], node["node"]): node["metrics"].get(metric) for row in runs for node in row["nodes"]}
    return Sample(seeds, {key: value for key, value in nodes.items() if isinstance(value, int | float)})
