"""The generations of a fleet: what the gate decided over time, and which nodes drifted or fell silent.

All follows from ``registry.json`` and ``decisions/*.json`` of a registry (:mod:`fedapps.runs.champions`).

- A node **drifts** if the model in use does worse on its newest data than the 99 % prediction interval (Student's t) of
  the values that the node had at its last 10 comparisons before. It needs 3 of them that are not all the same. Of nodes
  that do not change, 1 in 200 is beyond the interval by chance.
- A node is **silent** if it took part in a comparison before, and neither evaluated, refused nor said that it may not
  work in this one.

Values of different metrics are not compared: the rules begin anew where the metric changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from fedapps.base.errors import listed
from fedapps.base.report.metrics import describe
from fedapps.base.report.numbers import Estimate, format_number, half_width, mean_of
from fedapps.base.report.tables import Cell, Column, Row, Strong, Table, text_columns
from fedapps.runs.champions import WORST, Candidate, Decided, Registry
from fedapps.runs.records import Metrics, Number, parsed

ALL = "all nodes"
#: Earlier values of a node in its interval, at least and at most, and the confidence of the interval.
_FEWEST, _MOST = 3, 10
_CONFIDENCE = 0.99
#: Nodes that a cell of a table names, and groups that a table and a figure show beside all nodes and the worst tenth.
_NAMED, _GROUPS = 4, 5


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The values of both models on a node."""

    champion: Number
    challenger: Number


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The mean gain of the challenger over the nodes, with its 95 % interval."""

    mean: Number
    low: Number
    high: Number


@dataclass(frozen=True, kw_only=True)
class Decision(Decided):
    """A file of ``decisions``, which :func:`fedapps.app.gate.run_gate` writes."""

    date: datetime
    metric: str
    reason: str
    mode: Literal["min", "max"] = "min"
    champion: Candidate | None = None
    gain: Gain | None = None
    groups: Metrics = field(default_factory=dict)
    members: Mapping[str, list[str]] = field(default_factory=dict)
    nodes: Mapping[str, Pair] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    ineligible: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (self.rollback or (self.challenger if self.promote else self.champion)):
            raise ValueError("it must have a rollback, a challenger to promote, or a champion to keep")
        if unknown := {node for nodes in self.members.values() for node in nodes} - self.nodes.keys():
            raise ValueError(f"'members' has {min(unknown)!r}, which is not among 'nodes'")

    @property
    def outcome(self) -> str:
        """What was decided, and why a challenger was not promoted."""
        if self.rollback:
            nodes = listed(self.rollback.nodes, _NAMED) or ALL
            return f"{nodes} back from generation {self.rollback.before} to {self.rollback.after}"
        run = Path(self.challenger.run).name if self.challenger else ""
        return f"{run} promoted" if self.promote else f"champion kept, not {run}: {self.reason}"

    @property
    def in_use(self) -> int:
        """The generation that nodes use after the decision, unless they were taken back alone."""
        if self.rollback:
            return self.rollback.before if self.rollback.nodes else self.rollback.after
        used = self.challenger if self.promote else self.champion
        assert used is not None
        return used.generation

    def line(self) -> dict[str, float]:
        """The mean value of the champion by group; of the worst tenth by this value, and not by gain."""
        values = {node: pair.champion for node, pair in self.nodes.items()}
        ranked = sorted(values, key=lambda node: -_badness(values[node], self.mode))
        groups = {ALL: ranked, WORST: ranked[: math.ceil(len(ranked) / 10)], **self.members}
        return {name: mean_of([values[node] for node in nodes]) for name, nodes in groups.items() if nodes}


@dataclass(frozen=True)
class Generation:
    """A decision: its file's number, the nodes that drifted, and those that fell silent since the comparison before."""

    number: int
    decision: Decision
    drifted: Sequence[str] = ()
    silent: Sequence[str] = ()

    @property
    def day(self) -> str:
        """The date as text."""
        return f"{self.decision.date:%Y-%m-%d %H:%M}"


@dataclass(frozen=True)
class NodeState:
    """What the last comparisons say of a node.

    Attributes
    ----------
    last : Generation
        The last comparison that it took part in.
    value : float or None
        The value of the champion in it; None if the node did not evaluate both models.
    interval : tuple of float or None
        Limits of its own interval before that comparison.
    state : str
        "drift", "silent", "refused: ..." or "may not work: ..." at the last comparison; empty if there is nothing.
    """

    node: str
    last: Generation
    value: float | None = None
    interval: tuple[float, float] | None = None
    state: str = ""


@dataclass(frozen=True)
class Fleet:
    """The generations of a registry in order, and its nodes; those with a state first."""

    registry: Registry
    generations: tuple[Generation, ...]
    nodes: tuple[NodeState, ...]

    @property
    def comparisons(self) -> list[Generation]:
        """The decisions with values in the metric of the last one."""
        compared = [one for one in self.generations if one.decision.nodes]
        return [one for one in compared if one.decision.metric == compared[-1].decision.metric]

    @property
    def lines(self) -> dict[str, tuple[list[int], list[float]]]:
        """Numbers of decisions and the champion's values by group: all nodes, the worst tenth, and the worst groups."""
        lines: dict[str, tuple[list[int], list[float]]] = {}
        for one in self.comparisons:
            for name, value in one.decision.line().items():
                numbers, values = lines.setdefault(name, ([], []))
                numbers.append(one.number)
                values.append(value)
        first = [name for name in (ALL, WORST) if name in lines]
        others = [name for name in lines if name not in first]
        mode = self.comparisons[-1].decision.mode if lines else "min"
        others.sort(key=lambda name: -_badness(lines[name][1][-1], mode))
        return {name: lines[name] for name in [*first, *sorted(others[:_GROUPS])]}

    @property
    def metric(self) -> str:
        """The title of the metric of the last comparison; empty without one."""
        if not self.comparisons:
            return ""
        last = self.comparisons[-1].decision
        return f"{describe(last.metric).axis} ({'lower' if last.mode == 'min' else 'higher'} is better)"

    def facts(self) -> list[str]:
        """Which model is in use, and the nodes with another one, that drift or that are silent."""
        if not (champion := self.registry.champion):
            return ["no model in use"]
        model = self.registry.of(champion)
        facts = [f"generation {champion} in use: {Path(model.run).name}, {model.method}, round {model.round}"]
        facts += [f"{node} uses generation {number}" for node, number in self.registry.nodes.items()]
        for state, words in (("drift", "drifting"), ("silent", "silent")):
            if nodes := [one.node for one in self.nodes if one.state == state]:
                facts.append(f"{words}: {listed(nodes, _NAMED)}")
        return facts

    def table(self) -> Table:
        """A row for each decision, the newest first."""
        titles = ["date", "decision", "drift", "fell silent", "in use", "champion", "challenger", "gain", "nodes"]
        rows: list[Row] = []
        for one in reversed(self.generations):
            decision, pairs = one.decision, one.decision.nodes.values()
            gain = decision.gain
            estimate = Estimate(gain.mean, low=gain.low, high=gain.high) if gain else None
            rows.append(
                [
                    *(one.day, Strong(decision.outcome) if decision.promote else decision.outcome),
                    *(listed(one.drifted, _NAMED), listed(one.silent, _NAMED), str(decision.in_use)),
                    Cell.of(mean_of([pair.champion for pair in pairs]) if pairs else None),
                    Cell.of(mean_of([pair.challenger for pair in pairs]) if pairs else None),
                    Cell(estimate, limits=True),
                    Cell.of(len(pairs) if decision.champion else None),
                ]
            )
        return Table(text_columns(titles, texts=4), rows)

    def gains(self) -> Table:
        """The mean gain of each group at each comparison, the newest first."""
        wanted = [WORST, *(name for name in self.lines if name not in (ALL, WORST))]
        rows: list[Row] = [
            [one.day, *(Cell.of(one.decision.groups.get(name)) for name in wanted)]
            for one in reversed(self.comparisons)
        ]
        return Table(text_columns(["date", *wanted]), rows)

    def node_table(self, *, flagged: bool) -> Table:
        """The nodes with a state, or all."""
        rows: list[Row] = []
        for node in self.nodes:
            if node.state or not flagged:
                limits = " to ".join(map(format_number, node.interval)) if node.interval else "–"
                rows.append([node.node, node.state, node.last.day, Cell.of(node.value), limits])
        columns = [*text_columns(["node", "state", "last comparison"], texts=3), Column("champion")]
        return Table([*columns, Column("its own interval")], rows)


def is_registry(folder: Path) -> bool:
    """Whether a folder is a registry of champions."""
    return (folder / "registry.json").is_file()


def read_fleet(folder: Path) -> Fleet:
    """Read the generations of a registry.

    Raises
    ------
    ValueError
        A file is damaged; the message names it and the field.
    """
    paths = Registry(folder).decisions()
    decisions = {int(path.stem): parsed(path.read_bytes(), f"decisions/{path.name}", Decision) for path in paths}
    return Fleet(Registry.read(folder), *judged(decisions))


def judged(decisions: Mapping[int, Decision]) -> tuple[tuple[Generation, ...], tuple[NodeState, ...]]:
    """Apply the rules of drift and silence to decisions by their numbers, in order."""
    generations: list[Generation] = []
    earlier: dict[str, list[float]] = {}
    states: dict[str, NodeState] = {}
    metric = ""
    for number, decision in decisions.items():
        if decision.champion is None:  # a rollback or the first champion: no node was asked
            generations.append(Generation(number, decision))
            continue
        if decision.metric != metric:
            metric, earlier = decision.metric, {}
        intervals = {node: _interval(values) for node, values in earlier.items()}
        drifted = [node for node, pair in decision.nodes.items() if _is_beyond(pair, intervals.get(node), decision)]
        heard = decision.nodes.keys() | decision.refused.keys() | decision.ineligible.keys()
        silent = [node for node, of in states.items() if node not in heard and of.state != "silent"]
        one = Generation(number, decision, sorted(drifted), sorted(silent))
        generations.append(one)
        for node in states.keys() - heard:
            old = states[node]
            states[node] = NodeState(node, old.last, old.value, old.interval, "silent")
        for node in heard:
            pair = decision.nodes.get(node)
            state = "drift" if node in drifted else ""
            if pair is None:
                resting = decision.ineligible.get(node)
                state = f"refused: {decision.refused[node]}" if resting is None else f"may not work: {resting}"
            states[node] = NodeState(node, one, pair.champion if pair else None, intervals.get(node), state)
            if pair and math.isfinite(pair.champion):
                earlier[node] = [*earlier.get(node, ()), pair.champion][-_MOST:]
    return tuple(generations), tuple(sorted(states.values(), key=lambda of: (not of.state, of.node)))


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The prediction interval of the next value: mean ± t · sd · √(1 + 1/n), and ``half_width`` is t · sd / √n."""
    if len(values) < _FEWEST or not (sd := stdev(values)):
        return None
    half = half_width(sd, len(values), _CONFIDENCE) * math.sqrt(len(values) + 1)
    return fmean(values) - half, fmean(values) + half


def _is_beyond(pair: Pair, interval: tuple[float, float] | None, decision: Decision) -> bool:
    if interval is None:
        return False
    return not (pair.champion <= interval[1] if decision.mode == "min" else pair.champion >= interval[0])


def _badness(value: float, mode: str) -> float:
    """Greater for a worse value; the greatest for no number."""
    return math.inf if math.isnan(value) else value if mode == "min" else -value
