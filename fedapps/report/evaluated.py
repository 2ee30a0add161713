"""Which nodes a metric was evaluated on: rounds with other nodes than before, and the mean over those of every round.

A mean over nodes moves when a node leaves, although no model has changed. The paired curve is the mean over the nodes
that are in every evaluation of the metric, so that it moves with the models alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedapps.base.errors import listed
from fedapps.base.report.numbers import counted
from fedapps.runs.records import NodeRecord, RoundRecord
from fedapps.strategies.wire import COUNT_SUFFIX

from .run_data import RunData

#: By node, the value of a metric and its weight in a weighted mean.
_Values = Mapping[str, tuple[float, float]]
_MOST_NAMES, _MOST_ROUNDS = 4, 4
#: How far a mean that is computed here may be from the recorded one, relative to it.
_ACCURACY = 1e-6


@dataclass(frozen=True)
class NodeChange:
    """A round in which a metric was evaluated on other nodes than in the evaluation before."""

    round: int
    left: tuple[str, ...]
    joined: tuple[str, ...]


@dataclass(frozen=True)
class PairedCurve:
    """The changes of the evaluated nodes, and the mean over the nodes that are in every evaluation.

    Attributes
    ----------
    changes : tuple of NodeChange
        At least one.
    rounds, values : tuple
        The paired curve. Empty if no node is in every evaluation, or if the recorded means are of a kind that cannot be
        computed from the values of the nodes.
    nodes : int
        The number of nodes in every evaluation.
    """

    changes: tuple[NodeChange, ...]
    rounds: tuple[int, ...]
    values: tuple[float, ...]
    nodes: int

    @property
    def sentence(self) -> str:
        """When the nodes change, and what the paired curve is; it begins with a small letter."""
        if len(self.changes) > _MOST_ROUNDS:
            sentence = f"the evaluated nodes change {len(self.changes)} times, first in round {self.changes[0].round}"
        else:
            *first, last = map(_change_text, self.changes)
            before = f"{', '.join(first)} and " if first else ""
            sentence = f"the evaluated nodes change in {before}{last}"
        if self.rounds:
            always = f"{'the ' * (self.nodes > 1)}{counted(self.nodes, 'node')}"
            return f"{sentence}. Dotted: the mean over {always} of every evaluation."
        if self.nodes:
            return f"{sentence}. The kind of the mean is unknown here, so that no curve over the same nodes is drawn."
        return f"{sentence}. No node is in every evaluation, so that its rounds cannot be compared on the same nodes."


def paired_curve(run: RunData, method: str, metric: str) -> PairedCurve | None:
    """The paired curve of a metric under a method; ``None`` if it was always evaluated on the same nodes."""
    records = [node for node in run.nodes if node.method == method and node.phase == "evaluate"]
    return pair(metric, run.of(method), records)


def notes(changed: Mapping[str, PairedCurve], methods: int) -> list[str]:
    """Sentences on the changes of the evaluated nodes by method, one for all methods with the same changes.

    ``methods`` is the number of methods of the run; a single one is not named.
    """
    by_sentence: dict[str, list[str]] = {}
    for method, paired in changed.items():
        by_sentence.setdefault(paired.sentence, []).append(method)
    if methods == 1:
        return [sentence[0].upper() + sentence[1:] for sentence in by_sentence]
    return [f"{', '.join(names)}: {sentence}" for sentence, names in by_sentence.items()]


def unlike_nodes(run: RunData) -> str:
    """A warning if the last evaluations of the methods are of different nodes; otherwise empty."""
    last: dict[str, tuple[int, set[str]]] = {}
    for node in run.nodes:
        if node.phase == "evaluate":
            number, nodes = last.get(node.method, (0, set()))
            if node.round > number:
                number, nodes = last[node.method] = (node.round, set())
            if node.round == number:
                nodes.add(node.node)
    if run.config.get("fraction-evaluate", 1) != 1 or len({frozenset(nodes) for _, nodes in last.values()}) < 2:
        return ""
    counts = ", ".join(f"{method} of {counted(len(nodes), 'node')}" for method, (_, nodes) in last.items())
    return f"The last evaluations are of different nodes, so that their values cannot be compared: {counts}."


def pair(metric: str, rounds: Iterable[RoundRecord], nodes: Iterable[NodeRecord]) -> PairedCurve | None:
    """As :func:`paired_curve`, from the rounds of one method and the evaluations of its nodes.

    Nodes count in a round if their value is finite. The mean is the one of those below that gives the recorded value of
    every round from all its nodes: weighted by the count of the metric or else the examples, uniform, geometric.
    """
    by_round: dict[int, dict[str, tuple[float, float]]] = {}
    for node in nodes:
        value = node.numbers.get(metric, math.nan)
        weight = node.numbers.get(metric + COUNT_SUFFIX, node.num_examples)
        if math.isfinite(value) and weight > 0:
            by_round.setdefault(node.round, {})[node.node] = (value, weight)
    changes = _changes(by_round)
    if not changes:
        return None
    always = set.intersection(*map(set, by_round.values()))
    recorded = {record.round: record.evaluate[metric] for record in rounds if metric in record.evaluate}
    mean = next((mean for mean in _MEANS if _reproduces(mean, by_round, recorded)), None)
    if not always or mean is None:
        return PairedCurve(changes, (), (), len(always))
    shown = {number: mean({node: of[node] for node in sorted(always)}) for number, of in sorted(by_round.items())}
    return PairedCurve(changes, tuple(shown), tuple(shown.values()), len(always))


def _changes(by_round: Mapping[int, _Values]) -> tuple[NodeChange, ...]:
    order = sorted(by_round)
    pairs = [(later, set(by_round[before]), set(by_round[later])) for before, later in pairwise(order)]
    return tuple(
        NodeChange(number, tuple(sorted(before - after)), tuple(sorted(after - before)))
        for number, before, after in pairs
        if before != after
    )


def _reproduces(
    mean: Callable[[_Values], float], by_round: Mapping[int, _Values], recorded: Mapping[int, float]
) -> bool:
    known = [(mean(by_round[number]), value) for number, value in recorded.items() if number in by_round]
    return bool(known) and all(
        math.isclose(computed, value, rel_tol=_ACCURACY, abs_tol=1e-12) for computed, value in known
    )


def _weighted(values: _Values) -> float:
    numbers, weights = zip(*values.values(), strict=True)
    return float(np.average(numbers, weights=weights))


def _uniform(values: _Values) -> float:
    return float(np.mean([number for number, _ in values.values()]))


def _geometric(values: _Values) -> float:
    numbers = [number for number, _ in values.values()]
    if min(numbers) <= 0:
        return 0.0 if min(numbers) == 0 else math.nan
    return math.exp(float(np.mean(np.log(numbers))))


_MEANS = (_weighted, _uniform, _geometric)


def _change_text(change: NodeChange) -> str:
    parts = [
        f"{word} {listed(names, _MOST_NAMES)}"
        for word, names in (("without", change.left), ("with", change.joined))
        if names
    ]
    return f"round {change.round} ({', '.join(parts)})"
