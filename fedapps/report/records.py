"""The content of a run folder as immutable records: rounds, nodes, summaries and comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Metrics = Mapping[str, float]
Matrix = npt.NDArray[np.float64]
Value = bool | int | float | str


@dataclass(frozen=True)
class Refusal:
    """A reply that the strategy refused, and the reason."""

    node: str
    reason: str


@dataclass(frozen=True)
class LeftOut:
    """A metric of a node that could not be averaged, and its value as text."""

    node: str
    metric: str
    value: str


@dataclass(frozen=True)
class RoundRecord:
    """One round of one method, as recorded by the server.

    ``seconds`` is wall-clock time, ``rates`` are the learned rates relative to the largest, ``averaged`` names the
    tiers whose clusters were averaged, and ``timings`` are seconds by phase, empty in most runs. ``clock`` is the
    simulated time at the end of the round in seconds, NaN without simulated time.
    """

    method: str
    round: int
    stage: str
    seconds: float
    bytes_down: float
    bytes_up: float
    replies: int
    refused: tuple[Refusal, ...]
    left_out: tuple[LeftOut, ...]
    train: Metrics
    evaluate: Metrics
    rates: Metrics
    averaged: tuple[str, ...]
    timings: Metrics
    clock: float = math.nan


@dataclass(frozen=True)
class NodeRecord:
    """One node in one phase of one round.

    ``metrics`` are single numbers, ``series`` have one number per session, ``groups`` maps the kind of a group to the
    group's name, and ``timings`` are seconds by phase, empty in most runs. ``seconds`` from the message to the reply,
    in simulated time, are NaN in most runs; ``staleness`` counts server steps since the arrays that the node received.
    """

    method: str
    round: int
    node: str
    phase: str
    num_examples: float
    metrics: Metrics
    series: Mapping[str, tuple[float, ...]]
    groups: Mapping[str, str]
    bytes_up: float
    timings: Metrics
    seconds: float = math.nan
    staleness: float = 0.0

    @property
    def cluster(self) -> str:
        """The cluster whose model the node uses; empty under methods without clusters."""
        return self.groups.get("cluster", "")


@dataclass(frozen=True)
class Difference:
    """A difference with its 95 % confidence interval, whose limits are NaN where there is no more than one seed."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Spread:
    """A metric over seeds: its mean, its standard deviation, and half the width of the mean's 95 % interval.

    ``half`` is NaN with one seed. If runs of the method failed, ``finished`` of ``planned`` seeds count.
    """

    mean: float
    std: float
    half: float = math.nan
    finished: int = 0
    planned: int = 0

    @property
    def counted(self) -> str:
        """Such as ``(3 of 5)`` if runs failed; otherwise empty."""
        return f"({self.finished} of {self.planned})" if self.planned else ""


@dataclass(frozen=True)
class Curve:
    """Rounds, and the mean over seeds in each."""

    rounds: tuple[int, ...] = ()
    mean: tuple[float, ...] = ()


@dataclass(frozen=True)
class Course(Curve):
    """A metric over rounds: the means over seeds, and half the widths of their 95 % intervals, NaN with one seed.

    ``changed`` are the rounds that were evaluated on other nodes than before in some seed, and ``paired`` is the mean
    over the nodes of every evaluation (:mod:`fedapps.report.evaluated`); empty if not every seed has such nodes.
    """

    half: tuple[float, ...] = ()
    changed: tuple[int, ...] = ()
    paired: Curve = Curve()


@dataclass(frozen=True)
class HeldOutMetric:
    """A metric of the nodes that were held out: with the received, the adapted and a locally trained model.

    ``gain`` is adapted − shared, ``lead`` is adapted − local.
    """

    shared: Spread
    adapted: Spread
    local: Spread
    gain: Difference
    lead: Difference


@dataclass(frozen=True)
class HeldOut:
    """What a method gives to nodes that were held out of all rounds: how many they are, and their metrics by name."""

    epochs: int
    nodes: int
    metrics: Mapping[str, HeldOutMetric]


@dataclass(frozen=True)
class MethodSummary:
    """Final results and costs of a finished method; ``privacy`` is the guarantee of differential privacy, if any."""

    rounds: int
    final: Metrics
    best: Metrics
    seconds: float
    bytes_up: float
    bytes_down: float
    refused: int
    privacy: str = ""
    held_out: HeldOut | None = None


@dataclass(frozen=True)
class PairedTest:
    """A paired test of method ``a`` against ``b``; see :class:`fedapps.comparison.significance.PairedTest`.

    ``low`` and ``high`` are NaN with one seed.
    """

    metric: str
    a: str
    b: str
    seeds: int
    mean_difference: float
    low: float
    high: float
    p: float
    p_holm: float
    nodes_lower: int
    nodes_higher: int


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the paper that ``method`` exceeds ``rival`` in a metric by more than ``by``, and the verdict here.

    ``difference`` is the one found, with its confidence interval from ``low`` to ``high``, NaN with one seed; see
    :meth:`fedapps.comparison.papers.Claim.against`.
    """

    line: str
    metric: str
    method: str
    rival: str
    by: float
    verdict: str
    seeds: int
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class FailedRun:
    """A run of a comparison that failed after a round, 0 before the first one."""

    method: str
    seed: int
    round: int
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A comparison of methods over seeds.

    Attributes
    ----------
    recipe : str
        Name of the recipe.
    runs : mapping
        Metrics by method and seed.
    matrices : mapping
        By method and metric, the mean train-test matrix [S, S] of runs with S stages.
    table : mapping
        Spread over seeds by method and metric.
    curves : mapping
        Course over rounds by method and metric.
    nodes : mapping
        Mean over seeds by method, metric and node.
    paper : mapping
        The paper's numbers by method and metric.
    tests : tuple of PairedTest
        Paired tests between methods.
    references : mapping
        Spread by reference (a floor or a ceiling that no method reaches by training) and metric.
    claims : tuple of CheckedClaim
        The paper's claims, checked.
    held_out : mapping
        By method, what it gives to nodes that were held out; empty if there were none.
    notes : tuple of str
        Sentences below the table, such as which methods are below a floor.
    failed : tuple of FailedRun
    varied : Varied, optional
        If a key of the run config was varied, the comparison at each of its values; the other fields are empty then.
    """

    recipe: str
    runs: Mapping[str, Mapping[int, Metrics]]
    matrices: Mapping[str, Mapping[str, Matrix]]
    table: Mapping[str, Mapping[str, Spread]]
    paper: Mapping[str, Metrics]
    tests: tuple[PairedTest, ...]
    references: Mapping[str, Mapping[str, Spread]]
    claims: tuple[CheckedClaim, ...] = ()
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Course]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    failed: tuple[FailedRun, ...] = ()
    varied: Varied | None = None

    @property
    def parts(self) -> Mapping[str, Comparison]:
        """The comparisons at each value of a varied key, by title; or only this comparison, with an empty title."""
        if self.varied is None:
            return {"": self}
        return {f"{self.varied.key} = {value}": part for value, part in self.varied.values}

    @property
    def complete(self) -> Mapping[str, Mapping[str, Spread]]:
        """The table of the methods of which no run failed, which can be ranked."""
        lacking = {run.method for run in self.failed}
        return {method: row for method, row in self.table.items() if method not in lacking}

    @property
    def seeds(self) -> int:
        return len({seed for runs in self.runs.values() for seed in runs})


@dataclass(frozen=True)
class Varied:
    """A varied key of the run config, and the comparison at each of its values."""

    key: str
    values: tuple[tuple[Value, Comparison], ...]
