"""The metrics that a task measures on a node, and how they are averaged over nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

#: What a node measures, by ``<split>.<metric>``; a list has the statistics of a :class:`PooledMetric`.
Metrics = dict[str, float | list[float]]


@dataclass(frozen=True)
class PooledMetric:
    """A metric of several nodes that is no mean over nodes, but a function of sums over all examples.

    A node that reports the metric ``x`` also reports its statistics as the list ``x.statistics``.

    Attributes
    ----------
    size : int
        The number of statistics.
    value : function of a float64 ndarray [size]
        Gives the metric, a finite number, for the sums of the nodes' statistics, which are not negative.
    """

    size: int
    value: Callable[[np.ndarray], float]


#: How a metric is averaged over nodes: weighted by examples, with equal weights, geometrically with equal weights, or
#: computed from sums over all nodes.
MetricRule = Literal["weighted", "uniform", "geometric"] | PooledMetric


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes
    ----------
    metrics : dict of str to float or list of float
        The metrics that the node reports to the server.
    traces : mapping of str to ndarray
        Arrays to draw, such as trajectories. They stay in the node's folder.
    """

    metrics: Metrics
    traces: Mapping[str, np.ndarray] = field(default_factory=dict)
