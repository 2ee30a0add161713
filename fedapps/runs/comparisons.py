"""The content of ``compare.json`` as a record, which the comparison writes and the report reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, TypeAdapter

from fedapps.base.report.numbers import Estimate

from .records import Count, Metrics, Number, read_json

FILE = "compare.json"
Matrix: TypeAlias = npt.NDArray[np.float64]
Value: TypeAlias = bool | int | float | str
#: A value of each varied key.
Point: TypeAlias = Mapping[str, Value]
#: By method or reference, and metric.
Estimates: TypeAlias = Mapping[str, Mapping[str, Estimate]]


def _square(matrices: Mapping[str, list[list[float]]]) -> Mapping[str, list[list[float]]]:
    for metric, rows in matrices.items():
        if any(len(row) != len(rows[0]) for row in rows):
            raise ValueError(f"{metric!r} is {rows}; it must be a list of rows of equal length")
    return matrices


@dataclass(frozen=True, kw_only=True)
class HeldOutMeans:
    """The mean metrics of a run's held-out nodes, with the received, the adapted and a locally trained model."""

    epochs: Count
    nodes: Count
    shared: Metrics
    adapted: Metrics
    local: Metrics


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run that finished: its final metrics without the prefix ``test.``, and its train-test matrices by metric."""

    method: str
    seed: Count
    metrics: Metrics
    matrices: Annotated[Mapping[str, list[list[Number]]], AfterValidator(_square)] = field(default_factory=dict)
    held_out: HeldOutMeans | None = None


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run that failed after a round, 0 before the first one."""

    method: str
    seed: Count
    round: Count
    reason: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Rounds, and the mean over seeds in each."""

    rounds: Sequence[Count] = ()
    mean: Sequence[Number] = ()


@dataclass(frozen=True, kw_only=True)
class Course(Curve):
    """A metric over rounds: the means over seeds, and half the widths of their 95 % intervals, NaN with one seed.

    ``changed`` are the rounds that were evaluated on other nodes than before in some seed, and ``paired`` is the mean
    over the nodes of every evaluation (:mod:`fedapps.report.evaluated`); empty if not every seed has such nodes.
    """

    half: Sequence[Number] = ()
    changed: Sequence[Count] = ()
    paired: Curve = field(default_factory=Curve)


@dataclass(frozen=True, kw_only=True)
class PairedTest:
    """The two-sided test of method ``a`` against method ``b``, whose differences over the seeds are the sample.

    ``difference`` is that of a - b with its p-values; ``nodes_lower`` and ``nodes_higher`` count the nodes whose mean
    difference over the seeds is negative or positive.
    """

    metric: str
    a: str
    b: str
    difference: Estimate
    nodes_lower: Count = 0
    nodes_higher: Count = 0


@dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """A claim of the paper that ``method`` exceeds ``rival`` in a metric by more than ``by``, and the verdict here.

    ``difference`` is the one found; see :meth:`fedapps.comparison.papers.Claim.against`.
    """

    claim: str
    metric: str
    method: str
    rival: str
    by: float
    verdict: str
    difference: Estimate


@dataclass(frozen=True, kw_only=True)
class HeldOutMetric:
    """A metric of the held-out nodes over seeds: with the received, the adapted and a locally trained model.

    ``gain`` is adapted - shared, ``lead`` is adapted - local, both paired by seed.
    """

    shared: Estimate
    adapted: Estimate
    local: Estimate
    gain: Estimate
    lead: Estimate


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """What a method gives to nodes that were held out of all rounds: their number, and their metrics by name."""

    epochs: Count
    nodes: Count
    metrics: Mapping[str, HeldOutMetric]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What follows from the runs of a comparison, at one point of a grid of varied keys or in the whole.

    Attributes
    ----------
    rows : sequence of ComparedRun
    table : mapping
        Estimate over seeds by method and metric.
    curves : mapping
        Course over rounds by method and metric.
    nodes : mapping
        Mean over seeds of the last evaluation by method, metric and node.
    tests : sequence of PairedTest
    paper : mapping
        The paper's numbers by method and metric.
    references : mapping
        Estimate by reference (a floor or a ceiling that no method reaches by training) and metric.
    held_out : mapping
        By method, what it gives to nodes that were held out; empty if there were none.
    claims : sequence of CheckedClaim
    notes : sequence of str
        Sentences below the table, such as which methods are below a floor.
    failed : sequence of FailedRun
    """

    rows: Sequence[ComparedRun] = ()
    table: Estimates = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Course]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    tests: Sequence[PairedTest] = ()
    paper: Mapping[str, Metrics] = field(default_factory=dict)
    references: Estimates = field(default_factory=dict)
    held_out: Mapping[str, HeldOut] = field(default_factory=dict)
    claims: Sequence[CheckedClaim] = ()
    notes: Sequence[str] = ()
    failed: Sequence[FailedRun] = ()

    @property
    def runs(self) -> dict[str, dict[int, Metrics]]:
        """The metrics of the runs by method and seed."""
        runs: dict[str, dict[int, Metrics]] = {}
        for row in self.rows:
            runs.setdefault(row.method, {})[row.seed] = row.metrics
        return runs

    @property
    def matrices(self) -> dict[str, dict[str, Matrix]]:
        """By method and metric, the mean over seeds of the train-test matrix [S, S] of runs with S stages."""
        stacks: dict[str, dict[str, list[list[list[float]]]]] = {}
        for row in self.rows:
            for metric, matrix in row.matrices.items():
                stacks.setdefault(row.method, {}).setdefault(metric, []).append(matrix)
        return {
            method: {metric: np.mean(np.array(stack, float), axis=0) for metric, stack in of_method.items()}
            for method, of_method in stacks.items()
        }

    @property
    def complete(self) -> Estimates:
        """The table of the methods of which no run failed, which can be ranked."""
        lacking = {run.method for run in self.failed}
        return {method: row for method, row in self.table.items() if method not in lacking}

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len({row.seed for row in self.rows})


@dataclass(frozen=True, kw_only=True)
class VariedPart(Compared):
    """What follows from the runs at a point of the grid of varied keys."""

    point: Point

    @property
    def title(self) -> str:
        """The keys with their values."""
        return point_title(self.point)


def point_title(point: Point) -> str:
    """A point in words: ``images.alpha = 0.1, epochs = 5``."""
    return ", ".join(f"{key} = {value}" for key, value in point.items())


@dataclass(frozen=True, kw_only=True)
class Comparison(Compared):
    """A comparison of methods over seeds.

    Attributes
    ----------
    recipe, task : str
        Names of the recipe and of its task.
    labels : mapping of str to str
        The labels of methods with a display name, by this name, which stands in all other fields.
    against : str
        The baseline, against which each other method is tested; empty if pairs are tested.
    varied : sequence of VariedPart
        If keys of the run config were varied, the results at each combination of their values. Of the other fields,
        only ``claims``, which compare methods at values, and ``notes`` are filled then.
    """

    recipe: str
    task: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    against: str = ""
    varied: Sequence[VariedPart] = ()

    @property
    def parts(self) -> dict[str, Compared]:
        """The results at each point of a grid, by title; or only this comparison, with an empty title."""
        return {part.title: part for part in self.varied} or {"": self}

    @property
    def varied_keys(self) -> tuple[str, ...]:
        """The varied keys; empty if no key was varied."""
        return tuple(self.varied[0].point) if self.varied else ()

    @classmethod
    def read(cls, folder: Path) -> Comparison | None:
        """The comparison in a folder; None if there is none. Raises ``ReportError`` if its file is malformed."""
        return read_json(folder / FILE, cls)

    def text(self) -> str:
        """The content of the file, without what is empty."""
        return json.dumps(TypeAdapter(Comparison).dump_python(self, exclude_defaults=True), indent=2) + "\n"
