"""Paired tests between methods over seeds, with Holm's correction, sign counts per node, and results on held-out nodes.

Nodes, sessions and stages of one run share its training and are not independent; runs with different seeds are. The
unit is therefore the seed: two methods with the same seed give one difference, and the differences have a sign-flip
test and a confidence interval.

On recorded data, all seeds share the data. The results then hold for new training runs on these data, not for other
data. Blocks of recorded trials, averaged over seeds, are no alternative unit: they share the training runs, so their
differences are not independent either. With two names for one method, seven blocks of two test trials and 20 % of the
variance between seeds, sign flips of blocks give p <= .05 in 28 % of comparisons.

With a baseline, each other method is tested against it alone. Otherwise, with few methods, all pairs are tested. With
many, the pairs are too many to read, so every method is tested only against the best one and against the reference, the
method named first. As the data that choose the best one also test it, Holm's correction still covers all pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from fedapps.base.report.metrics import bare, describe
from fedapps.base.report.numbers import Estimate
from fedapps.report.comparison_tables import SIGN_PATTERNS, corrected_over
from fedapps.runs.comparisons import HeldOut, HeldOutMetric, PairedTest
from fedapps.strategies.wire import HELD_OUT_PREFIXES

#: The received model, the adapted one, and the one that the node trained alone.
MODELS = tuple(prefix.removesuffix(".") for prefix in HELD_OUT_PREFIXES)
#: By method and metric, one value per seed.
Values = Mapping[str, Mapping[str, Sequence[float]]]
#: Largest number of methods for which all pairs are tested.
ALL_PAIRS_UP_TO = 7
Pair = tuple[str, str]


def held_out_row(summary: Mapping[str, Any]) -> dict[str, Any]:
    """The field ``held_out`` of a run in ``compare.json``: ``epochs``, the number of ``nodes``, and the mean metrics of
    each model without the prefix ``test.``. Empty if the run held out no node, or none of them replied.

    Parameters
    ----------
    summary : mapping
        The method in ``summary.json``.
    """
    held_out = summary.get("held_out", {})
    if not held_out.get("nodes"):
        return {}
    models = {model: {bare(name): value for name, value in held_out[model].items()} for model in MODELS}
    return {"held_out": {"epochs": held_out["epochs"], "nodes": len(held_out["nodes"]), **models}}


def held_out_table(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> dict[str, HeldOut]:
    """By method, the means over seeds and the differences that a new node cares about.

    Parameters
    ----------
    rows : sequence of mappings
        One row per run, in the same order of seeds for each method; those with ``held_out`` count.
    metrics : sequence of str
        Those of the table.
    """
    counted = [row for row in rows if "held_out" in row]
    values = {
        model: seed_values([{"method": row["method"], "metrics": row["held_out"][model]} for row in counted])
        for model in MODELS
    }
    sizes = {row["method"]: {key: row["held_out"][key] for key in ("epochs", "nodes")} for row in counted}
    return {
        method: HeldOut(
            **sizes[method], metrics=_by_metric({model: values[model][method] for model in MODELS}, metrics)
        )
        for method in sizes
    }


def _by_metric(models: Mapping[str, Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> dict[str, HeldOutMetric]:
    by_metric = {}
    for name in map(bare, metrics):
        if all(name in models[model] for model in MODELS):
            shared, adapted, local = (Estimate.of(models[model][name]) for model in MODELS)
            by_metric[name] = HeldOutMetric(
                shared=replace(shared, values=()),
                adapted=replace(adapted, values=()),
                local=replace(local, values=()),
                gain=replace(adapted.minus(shared), values=()),
                lead=replace(adapted.minus(local), values=()),
            )
    return by_metric


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
        Exact up to 16 seeds; with more, ``SIGN_PATTERNS`` patterns are drawn. No p-value is below
        :func:`~fedapps.report.comparison_tables.smallest_p`, so that of one seed is 1.
    """
    if differences.shape[-1] < 2:
        return np.ones(differences.shape[:-1])
    result = scipy.stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=SIGN_PATTERNS, axis=-1, random_state=0
    )
    return np.asarray(result.pvalue)


def chosen_pairs(means: Mapping[str, float], better: int = -1, against: str = "") -> list[Pair]:
    """The pairs to test, without duplicates.

    Parameters
    ----------
    means : mapping
        Mean of each method, in the order in which the methods were named.
    better : int
        1 if higher is better, otherwise lower is.
    against : str
        The baseline; may be empty.

    Returns
    -------
    list of (str, str)
        With a baseline, each other method with it. Otherwise all pairs for up to ``ALL_PAIRS_UP_TO`` methods; for
        more, the first of a pair is the method with the best mean or the method named first.
    """
    if against:
        return [(method, against) for method in means if method != against and against in means]
    if len(means) <= ALL_PAIRS_UP_TO:
        return list(combinations(means, 2))
    best, first = (max if better > 0 else min)(means, key=means.__getitem__), next(iter(means))
    pairs = [(best, other) for other in means if other != best]
    return pairs + [(first, other) for other in means if other not in (best, first) and best != first]


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


def all_tests(
    rows: Sequence[Mapping[str, Any]],
    methods: Sequence[str],
    metrics: Sequence[str],
    rivals: Mapping[str, tuple[str, str]] | None = None,
    against: str = "",
) -> list[PairedTest]:
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
    rivals : mapping, optional
        By metric, the name and the metric of a rival that every run measures
        (:attr:`fedapps.tasks.base.Task.rivals`).
    against : str
        The baseline; empty for the pairs of :func:`chosen_pairs` without one.
    """
    rivals, tests = rivals or {}, list[PairedTest]()
    measured_as = {metric for _, metric in rivals.values()}
    for metric in metrics:
        named = {method: _sample(rows, method, metric) for method in methods}
        if metric in rivals:
            name, own = rivals[metric]
            named[name] = _sample(rows, methods[0], own)
        samples = {name: sample for name, sample in named.items() if sample}
        if metric not in measured_as:
            tests += paired_tests(metric, samples, against)
    return tests


def paired_tests(metric: str, samples: Mapping[str, Sample], against: str = "") -> list[PairedTest]:
    """Test the pairs of methods from :func:`chosen_pairs`. All samples have the same seeds."""
    means = {method: float(np.mean(sample.seeds)) for method, sample in samples.items()}
    pairs = chosen_pairs(means, describe(metric).better, against)
    if not pairs:
        return []
    p_values = sign_flip_p(np.array([np.subtract(samples[a].seeds, samples[b].seeds) for a, b in pairs])).tolist()
    return [
        _compare(metric, a, b, samples[a], samples[b], p, p_holm)
        for (a, b), p, p_holm in zip(pairs, p_values, holm(p_values, corrected_over(pairs)), strict=True)
    ]


def holm(p_values: Sequence[float], of: int) -> list[float]:
    """Holm's step-down correction (1979): p-value i of m (sorted, from 0) times m - i, made monotone, at most 1.

    ``of`` is m; tests without a p-value count as if theirs were the largest ones.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, p_values[index] * (of - rank)))
        corrected[index] = largest
    return corrected


def _compare(metric: str, a: str, b: str, left: Sample, right: Sample, p: float, p_holm: float) -> PairedTest:
    difference = Estimate.of(np.subtract(left.seeds, right.seeds).tolist())
    of_node: dict[str, list[float]] = {}
    for key in left.nodes.keys() & right.nodes.keys():
        of_node.setdefault(key[1], []).append(left.nodes[key] - right.nodes[key])
    means = [float(np.mean(sorted(differences))) for differences in of_node.values()]
    return PairedTest(
        metric=metric,
        a=a,
        b=b,
        difference=replace(difference, values=(), p=p, p_holm=p_holm),
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
