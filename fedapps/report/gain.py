"""The gain of a federation: its best federated method beside the best one whose nodes train alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedapps.base.report.metrics import Metric, bare
from fedapps.methods.base import Role
from fedapps.registry.expressions import read_expression
from fedapps.registry.methods import build_method

from .run_data import RunData


@dataclass(frozen=True)
class Gain:
    """A federated method beside one whose nodes train alone.

    Attributes
    ----------
    metric : Metric
        The main metric of the run, whose direction is known.
    method, alone : str
        The best federated method, and the best one without a federation.
    values : tuple of float
        The metric of both, in this order: final values, or means over seeds.
    nodes : tuple of int
        The number of nodes on which ``method`` is better, and the number of nodes that both report. In a comparison,
        a node counts by its mean over the seeds.
    seeds : tuple of int
        The number of seeds in which ``method`` is better, and the number of seeds; (0, 0) in a run.
    """

    metric: Metric
    method: str
    alone: str
    values: tuple[float, float]
    nodes: tuple[int, int]
    seeds: tuple[int, int]

    @property
    def sign(self) -> int:
        """1 if the federated method is better, -1 if it is worse, 0 if both are equal."""
        difference = self.metric.better * (self.values[0] - self.values[1])
        return (difference > 0) - (difference < 0)


def gain_of(run: RunData, metric: Metric, values: Mapping[str, float]) -> Gain | None:
    """The gain in a metric; None without its direction, a federated method or a method whose nodes train alone.

    Parameters
    ----------
    run : RunData
    metric : Metric
    values : mapping
        The metric by method. Values that are not finite are left out.
    """
    finite = {method: value for method, value in values.items() if math.isfinite(value)}
    federated = [method for method in finite if role_of(run, method) == "federated"]
    alone = [method for method in finite if role_of(run, method) == "alone"]
    if not metric.better or not federated or not alone:
        return None
    best, baseline = (max(names, key=lambda name: metric.better * finite[name]) for names in (federated, alone))
    return Gain(
        metric,
        best,
        baseline,
        (finite[best], finite[baseline]),
        _tested_nodes(run, metric, best, baseline) if run.comparison else _nodes(run, metric, best, baseline),
        _seeds(run, metric, best, baseline),
    )


def role_of(run: RunData, method: str) -> Role:
    """The role of a method by its label; "reference" if the method is unknown here, such as one of another package."""
    try:
        return build_method(read_expression(method), run.config).role
    except ValueError:
        return "reference"


def _nodes(run: RunData, metric: Metric, best: str, baseline: str) -> tuple[int, int]:
    evaluated = run.last_evaluations()
    first, second = (
        {key: node.numbers[metric.name] for key, node in evaluated.get(name, {}).items() if metric.name in node.numbers}
        for name in (best, baseline)
    )
    pairs = {key: (first[key], second[key]) for key in first.keys() & second.keys()}
    return _better(metric, [pair for pair in pairs.values() if all(map(math.isfinite, pair))])


def _seeds(run: RunData, metric: Metric, best: str, baseline: str) -> tuple[int, int]:
    runs = run.comparison.runs if run.comparison else {}
    first, second = (
        {seed: row[metric.name] for seed, row in runs.get(name, {}).items() if metric.name in row}
        for name in (best, baseline)
    )
    return _better(metric, [(first[seed], second[seed]) for seed in first.keys() & second.keys()])


def _tested_nodes(run: RunData, metric: Metric, best: str, baseline: str) -> tuple[int, int]:
    for test in run.comparison.tests if run.comparison else ():
        if bare(test.metric) == bare(metric.name) and {test.a, test.b} == {best, baseline}:
            lower_is_better = (metric.better < 0) == (test.a == best)
            better = test.nodes_lower if lower_is_better else test.nodes_higher
            return better, test.nodes_lower + test.nodes_higher
    return 0, 0


def _better(metric: Metric, pairs: list[tuple[float, float]]) -> tuple[int, int]:
    return sum(metric.better * (a - b) > 0 for a, b in pairs), len(pairs)
