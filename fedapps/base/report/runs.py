"""What a section of a task's report sees of a run; :class:`fedapps.report.run_data.RunData` provides it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class NodeResult(Protocol):
    """What a node reported in an evaluation."""

    @property
    def numbers(self) -> Mapping[str, float]:
        """The metrics that are single numbers."""

    @property
    def series(self) -> Mapping[str, tuple[float, ...]]:
        """The metrics with a number for each session or class."""

    @property
    def cluster(self) -> str:
        """The cluster whose model the node uses; empty under methods without clusters."""


class ReportedRun(Protocol):
    """The results of a run, which may be unfinished."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods with results, in the order of the config."""

    @property
    def traces(self) -> Mapping[tuple[str, str], Path]:
        """The ``traces.safetensors`` by method and node."""

    @property
    def references(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics of floors and ceilings by their names."""

    @property
    def seed_metrics(self) -> Mapping[str, Mapping[int, Mapping[str, float]]]:
        """The final metrics of the runs of a comparison by method and seed; empty for a run."""

    def last_evaluations(self) -> Mapping[str, Mapping[str, NodeResult]]:
        """The last evaluation of each node, by method and node."""

    def final_metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The final metrics of each method."""
