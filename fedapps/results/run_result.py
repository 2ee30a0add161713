"""The results of one run and of the stages of a pipeline, and what they share with those of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapps.base.report.figures import Drawing
from fedapps.report.page import drawings
from fedapps.report.run_data import RunData, read_run
from fedapps.runs.records import NodeRecord, RoundRecord
from fedapps.runs.run_folder import RunFolder
from fedapps.strategies.records import under


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
        """A row per method and round; see :func:`~fedapps.results.run_result.rounds_frame`."""
        return rounds_frame(self._data)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row per method, round, node and phase; see :func:`~fedapps.results.run_result.nodes_frame`."""
        return nodes_frame(self._data)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The final metrics, a row per method; see :func:`~fedapps.results.run_result.metrics_frame`."""
        return metrics_frame(self._data)

    @cached_property
    def held_out(self) -> pd.DataFrame:
        """A row per method, held-out node and model; see :func:`~fedapps.results.run_result.held_out_frame`."""
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


def rounds_frame(run: RunData) -> pd.DataFrame:
    """A row per method and round; metrics are the columns ``train.NAME`` and ``evaluate.NAME``.

    ``seconds`` is wall-clock time, bytes are those of all messages of the round, and ``refused`` counts replies. In
    simulated time, ``clock`` is the time at the end of the round in seconds.
    Metrics that a round does not have are NaN.
    """
    return pd.DataFrame([_round(record) for record in run.rounds])


def nodes_frame(run: RunData) -> pd.DataFrame:
    """A row per method, round, node and phase ("train" or "evaluate") with the metrics that the node reported.

    Groups are the columns ``group.KIND``. A metric with one number per session is a column of tuples; a metric that has
    the name of another column is called ``metric.NAME``. In simulated time, ``seconds`` are those from the message to
    train to the reply, and ``staleness`` counts the server steps since the arrays that the node had received.
    """
    return pd.DataFrame([_node(record) for record in run.nodes])


def metrics_frame(run: RunData) -> pd.DataFrame:
    """A row per method with its final metrics: those of the summary, or else of the last evaluation."""
    frame = pd.DataFrame.from_dict(run.final_metrics(), orient="index")
    return frame.rename_axis("method")


def held_out_frame(run: RunData) -> pd.DataFrame:
    """A row per method, held-out node and model (``shared``, ``adapted`` or ``local``), with the node's metrics.

    The frame has no rows if the run held out no node.
    """
    rows = [
        {"method": method, "node": node, "model": model, **metrics}
        for method, of in run.summary.items()
        for node, models in of.held_out.nodes.items()
        for model, metrics in models.items()
    ]
    return pd.DataFrame(rows, columns=None if rows else ["method", "node", "model"])


def with_columns(frame: pd.DataFrame, values: Mapping[str, Any], *, after: str) -> pd.DataFrame:
    """A copy of ``frame`` with constant columns after the column ``after``."""
    copy = frame.copy()
    index = list(copy.columns).index(after) + 1
    for name, value in reversed(list(values.items())):
        copy.insert(index, name, value)
    return copy


def _round(record: RoundRecord) -> dict[str, Any]:
    return {
        "method": record.method,
        "stage": record.stage,
        "round": record.round,
        "seconds": record.seconds,
        "bytes_down": record.bytes_down,
        "bytes_up": record.bytes_up,
        "replies": record.replies,
        "refused": len(record.refused),
        **({"clock": record.clock} if math.isfinite(record.clock) else {}),
        **{f"train.{name}": value for name, value in record.train.items()},
        **{f"evaluate.{name}": value for name, value in record.evaluate.items()},
        **{f"rates.{name}": value for name, value in record.strategy.rates.items()},
    }


def _node(record: NodeRecord) -> dict[str, Any]:
    head = {
        "method": record.method,
        "round": record.round,
        "node": record.node,
        "phase": record.phase,
        "num_examples": record.num_examples,
        **({"seconds": record.seconds, "staleness": record.staleness} if math.isfinite(record.seconds) else {}),
        **{f"group.{kind}": name for kind, name in record.groups.items()},
    }
    metrics = record.metrics
    return head | {f"metric.{name}" if name in head else name: value for name, value in metrics.items()}
