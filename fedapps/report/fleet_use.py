"""How a run in simulated time used its fleet: who worked, whose replies came late, and who was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from .metrics import Metric
from .records import NodeRecord
from .run_data import RunData

#: Parts of the fleet of equal size, by the speed of the devices.
PARTS = 10


def slowest(speeds: Mapping[str, float]) -> list[str]:
    """The tenth of the nodes, at least one, whose devices take most seconds for a step; the slowest first."""
    return by_speed(speeds)[::-1][: math.ceil(len(speeds) / PARTS)]


def by_speed(speeds: Mapping[str, float]) -> list[str]:
    """The nodes in the order of their devices' seconds for a step; the fastest first."""
    return sorted(speeds, key=lambda node: (speeds[node], node))


def mean_of(values: Iterable[float]) -> float:
    """The mean of the finite values; NaN if there are none."""
    found = [value for value in values if math.isfinite(value)]
    return fmean(found) if found else math.nan


@dataclass(frozen=True)
class FleetUse:
    """How a method used the fleet.

    Attributes
    ----------
    seconds : float
        Simulated time until the end of the last round.
    busy : mapping of str to float
        By node, the part of this time between a message to train and its accepted reply, from 0 to 1.
    participation : sequence of float
        The part of the accepted replies from each tenth of the nodes, the fastest first.
    staleness, most_stale : float
        Mean and maximum of the server steps since the arrays that a node had received.
    slowest, everyone : float
        The main metric of the last evaluation, as the mean over the slowest tenth of the nodes, and over all; NaN
        without an evaluation.
    """

    seconds: float
    busy: Mapping[str, float]
    participation: Sequence[float]
    staleness: float
    most_stale: float
    slowest: float
    everyone: float


def fleet_use(run: RunData, method: str, metric: Metric | None) -> FleetUse | None:
    """How a method used the fleet; ``None`` if the run has no simulated time."""
    seconds = max((record.clock for record in run.of(method) if math.isfinite(record.clock)), default=0.0)
    if not seconds or not run.speeds:
        return None
    trained = [node for node in run.nodes if (node.method, node.phase) == (method, "train")]
    busy = dict.fromkeys(by_speed(run.speeds), 0.0)
    replies = dict.fromkeys(busy, 0)
    for node in trained:
        if node.node in busy:
            replies[node.node] += 1
            busy[node.node] += node.seconds / seconds if math.isfinite(node.seconds) else 0.0
    last = _last(run.nodes, method)
    values = {node: of.metrics.get(metric.name, math.nan) for node, of in last.items()} if metric else {}
    return FleetUse(
        seconds,
        {node: min(part, 1.0) for node, part in busy.items()},
        _parts(list(replies.values())),
        mean_of(node.staleness for node in trained),
        max((node.staleness for node in trained), default=0.0),
        mean_of(values.get(node, math.nan) for node in slowest(run.speeds)),
        mean_of(values.values()),
    )


def _last(nodes: Iterable[NodeRecord], method: str) -> dict[str, NodeRecord]:
    """By node, its reply to the last evaluation."""
    found = [node for node in nodes if (node.method, node.phase) == (method, "evaluate")]
    last = max((node.round for node in found), default=0)
    return {node.node: node for node in found if node.round == last}


def _parts(replies: Sequence[int]) -> list[float]:
    """The part of the replies in each of ten parts of the fleet; of a small fleet, that of each node."""
    count = min(PARTS, len(replies))
    edges = [round(part * len(replies) / count) for part in range(count + 1)]
    total = max(sum(replies), 1)
    return [sum(replies[edges[part] : edges[part + 1]]) / total for part in range(count)]
