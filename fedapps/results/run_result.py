"""The results of one run and of the stages of a pipeline, and what they share with those of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapps.base.report.figures import Drawing
from fedapps.report.page import drawings
from fedapps.report.run_data import read_run
from fedapps.runs.run_folder import RunFolder
from fedapps.strategies.rounds.snapshots import under

from .frames import held_out_frame, metrics_frame, nodes_frame, rounds_frame


class ReportedResult:
    """The result in a folder that has a report.

    Parameters
    ----------
    folder : Path
        The folder of a run or of a comparison.

    Raises
    ------
    ReportError
        If a file is missing or malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._data = read_run(folder)

    @property
    def methods(self) -> tuple[str, ...]:
        """The labels of the methods with results."""
        return self._data.methods

    @cached_property
    def figures(self) -> Mapping[str, tuple[Drawing, ...]]:
        """The figures of the report by its sections, such as ``curves``; a notebook shows each as a picture."""
        return drawings(self._data)

    @property
    def report(self) -> Path:
        """The path of the HTML report."""
        return self.folder / "report.html"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, methods={', '.join(self.methods)})"


class RunResult(ReportedResult):
    """The result of a run, read from its folder when it is first asked for.

    Parameters
    ----------
    folder : Path
        The run folder. The run may be unfinished.

    Raises
    ------
    ReportError
        If a file is missing or malformed.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """The flat run config."""
        return self._data.config

    @property
    def finished(self) -> bool:
        """Whether every method has completed its rounds."""
        return self._data.finished

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per method and round; see :func:`~fedapps.results.frames.rounds_frame`."""
        return rounds_frame(self._data)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row per method, round, node and phase; see :func:`~fedapps.results.frames.nodes_frame`."""
        return nodes_frame(self._data)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The final metrics, a row per method; see :func:`~fedapps.results.frames.metrics_frame`."""
        return metrics_frame(self._data)

    @cached_property
    def held_out(self) -> pd.DataFrame:
        """A row per method, held-out node and model; see :func:`~fedapps.results.frames.held_out_frame`."""
        return held_out_frame(self._data)

    def arrays(self, method: str = "") -> dict[str, npt.NDArray[Any]]:
        """The shared parameters after the last round of a method.

        Parameters
        ----------
        method : str
            One of :attr:`methods`; may be empty if there is only one.

        Returns
        -------
        dict of str to ndarray
            The arrays by the names of the model's parameters. Private parameters stay on the nodes and are not here; a
            method that shares nothing has no arrays.

        Raises
        ------
        ValueError
            If the method is unknown or has completed no round, or its checkpoint is damaged.
        """
        chosen = method or (self.methods[0] if len(self.methods) == 1 else "")
        if chosen not in self.methods:
            raise ValueError(f"method = {method!r}: must be one of {', '.join(map(repr, self.methods))}")
        snapshot = RunFolder(self.folder, "").checkpoints(chosen).last()
        if snapshot is None:
            raise ValueError(f"method = {chosen!r}: {self.folder} has no checkpoint of it")
        return {name: np.asarray(array) for name, array in under("shared.", snapshot.arrays).items()}

    def _repr_html_(self) -> str:
        return str(self.metrics.to_html())


class PipelineResult:
    """The results of the stages of a pipeline.

    Parameters
    ----------
    folder : Path
        The folder of the pipeline, which has a run folder for each stage that began.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def stages(self) -> dict[str, RunResult]:
        """The result of each stage by its name, in the order in which they began."""
        configs = sorted(self.folder.glob("*/config.toml"), key=lambda path: path.stat().st_mtime_ns)
        return {path.parent.name: RunResult(path.parent) for path in configs}

    def __getitem__(self, stage: str) -> RunResult:
        if stage not in self.stages:
            raise KeyError(f"{stage!r}: the stages of {self.folder} are {', '.join(self.stages)}")
        return self.stages[stage]

    def __repr__(self) -> str:
        return f"PipelineResult({str(self.folder)!r}, stages={', '.join(self.stages)})"
