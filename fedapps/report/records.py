"""What a run wrote, as immutable records: rounds, nodes, summaries, comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Metrics = Mapping[str, float]
Matrix = npt.NDArray[np.float64]
Value = bool | int | float | str


@dataclass(frozen=True)
class Refusal:
    """A reply that the strategy did not use, and why."""

    node: str
    reason: str


@dataclass(frozen=True)
class RoundRecord:
    """One round of one method, as the server saw it.

    Seconds are wall-clock; `rates` are relative to L; `averaged` names the tiers whose clusters were averaged.
    """

    method: str
    round: int
    stage: str
    seconds: float
    bytes_down: float
    bytes_up: float
    replies: int
    refused: tuple[Refusal, ...]
    train: Metrics
    evaluate: Metrics
    rates: Metrics
    averaged: tuple[str, ...]


@dataclass(frozen=True)
class NodeRecord:
    """One node in one phase of one round: its numbers, and its series with one number for each session.

    `groups` are the kinds of groups it belongs to, by name.
    """

    method: str
    round: int
    node: str
    phase: str
    num_examples: float
    metrics: Metrics
    series: Mapping[str, tuple[float, ...]]
    groups: Mapping[str, str]

    @property
    def cluster(self) -> str:
        """The cluster that has a model of its own for it; empty under methods without clusters."""
        return self.groups.get("cluster", "")


@dataclass(frozen=True)
class MethodSummary:
    """What a method came to at the end of a finished run."""

    rounds: int
    final: Metrics
    best: Metrics
    seconds: float
    bytes_up: float
    bytes_down: float
    refused: int


@dataclass(frozen=True)
class PairedTest:
    """A paired test of method `a` against `b`; `median_difference` is a - b, `p_holm` is corrected.

    `nodes_lower` and `nodes_higher` count the nodes by the sign of their own difference.
    """

    metric: str
    a: str
    b: str
    n: int
    p: float
    p_holm: float
    median_difference: float
    nodes_lower: int
    nodes_higher: int


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a metric over seeds."""

    mean: float
    std: float


@dataclass(frozen=True)
class CheckedClaim:
    """What a paper says: `method` exceeds `rival` in a metric. Here by `margin`, and so it `holds` or not."""

    line: str
    metric: str
    method: str
    rival: str
    margin: float
    holds: bool


@dataclass(frozen=True)
class Comparison:
    """Several runs of several methods: a table of spreads by method and metric, and the paired tests.

    `runs` holds the metrics of each run of a method by its seed, `matrices` by method and metric the train-test
    matrix [S, S] of runs with S stages, their mean. Where a key of the run config was `varied` there is a comparison
    for each of its values, and nothing else here.
    """

    recipe: str
    runs: Mapping[str, Mapping[int, Metrics]]
    matrices: Mapping[str, Mapping[str, Matrix]]
    table: Mapping[str, Mapping[str, Spread]]
    paper: Mapping[str, Metrics]
    tests: tuple[PairedTest, ...]
    claims: tuple[CheckedClaim, ...] = ()
    varied: Varied | None = None

    @property
    def parts(self) -> Mapping[str, Comparison]:
        """The comparisons that have tables, by a title: those of the values of a varied key, or this one alone."""
        if self.varied is None:
            return {"": self}
        return {f"{self.varied.key} = {value}": part for value, part in self.varied.values}

    @property
    def seeds(self) -> int:
        return len({seed for runs in self.runs.values() for seed in runs})


@dataclass(frozen=True)
class Varied:
    """A key of the run config, and the comparison at each of its values."""

    key: str
    values: tuple[tuple[Value, Comparison], ...]
