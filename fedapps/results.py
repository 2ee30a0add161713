"""Results of runs, comparisons and pipelines for Python: pandas frames, final arrays and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapps.base.errors import listed
from fedapps.base.report.figures import Drawing
from fedapps.comparison.matrix import Plan
from fedapps.report.page import drawings
from fedapps.report.run_data import RunData, read_run
from fedapps.runs.comparisons import Compared
from fedapps.runs.records import NodeRecord, RoundRecord
from fedapps.runs.run_folder import PIPELINE, RunFolder, read_object
from fedapps.strategies.records import under

_SHOWN = 5  # names of runs in a message


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
        """The methods with results: their display names, or their labels."""
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
        """A row per method and round; see :func:`~fedapps.results.rounds_frame`."""
        return rounds_frame(self._data)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row per method, round, node and phase; see :func:`~fedapps.results.nodes_frame`."""
        return nodes_frame(self._data)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The final metrics, a row per method; see :func:`~fedapps.results.metrics_frame`."""
        return metrics_frame(self._data)

    @cached_property
    def held_out(self) -> pd.DataFrame:
        """A row per method, held-out node and model; see :func:`~fedapps.results.held_out_frame`."""
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
        label = method or (self.methods[0] if len(self.methods) == 1 else "")
        if label not in self.methods:
            raise ValueError(f"method = {method!r}: must be one of {', '.join(map(repr, self.methods))}")
        snapshot = RunFolder(self.folder, "").checkpoints(self._data.labels.get(label, label)).last()
        if snapshot is None:
            raise ValueError(f"method = {label!r}: {self.folder} has no checkpoint of it")
        return {name: np.asarray(array) for name, array in under("shared.", snapshot.arrays).items()}

    def _repr_html_(self) -> str:
        return str(self.metrics.to_html())


class PipelineResult:
    """The results of the stages of a pipeline.

    Parameters
    ----------
    folder : Path
        The folder of the pipeline, which has a run folder for each stage that began.

    Raises
    ------
    ValueError
        No pipeline wrote the folder.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / PIPELINE).exists():
            runs = listed(sorted(path.parent.name for path in folder.glob("*/config.toml")), _SHOWN)
            raise ValueError(
                f"{folder}: neither a run, a comparison nor a pipeline, but it has the runs {runs}: open one of them; "
                "an older pipeline has to be resumed first"
            )
        self.folder = folder

    @cached_property
    def stages(self) -> dict[str, RunResult]:
        """The result of each stage that began by its name, in their order."""
        names = read_object(self.folder / PIPELINE).get("stages", ())
        return {name: RunResult(self.folder / name) for name in names if (self.folder / name / "config.toml").exists()}

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
    names = ("method", "stage", "round", "seconds", "bytes_down", "bytes_up", "replies")
    return {
        **{name: getattr(record, name) for name in names},
        "refused": len(record.refused),
        **({"clock": record.clock} if math.isfinite(record.clock) else {}),
        **{f"train.{name}": value for name, value in record.train.items()},
        **{f"evaluate.{name}": value for name, value in record.evaluate.items()},
        **{f"rates.{name}": value for name, value in record.strategy.rates.items()},
    }


def _node(record: NodeRecord) -> dict[str, Any]:
    head = {
        **{name: getattr(record, name) for name in ("method", "round", "node", "phase", "num_examples")},
        **({"seconds": record.seconds, "staleness": record.staleness} if math.isfinite(record.seconds) else {}),
        **{f"group.{kind}": name for kind, name in record.groups.items()},
    }
    metrics = record.metrics
    return head | {f"metric.{name}" if name in head else name: value for name, value in metrics.items()}


class ComparisonResult(ReportedResult):
    """The result of a comparison: methods with several seeds, and at each point of a grid if keys are varied.

    The varied keys are columns of every frame, after ``method`` and ``seed``.

    Parameters
    ----------
    folder : Path
        The folder of a finished comparison.

    Raises
    ------
    ValueError
        If a file is missing or malformed; unfinished comparisons have no ``compare.json``.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "compare.json").exists():
            raise ValueError(f"{folder}: this comparison is not finished; resume it with compare(resume=...)")
        super().__init__(folder)

    @cached_property
    def runs(self) -> dict[tuple[Any, ...], RunResult]:
        """The result of each finished run by (method, seed), or by (method, seed, value, ...) if keys were varied."""
        return {
            tuple(self._keys(cell).values()): RunResult(self.folder / str(cell["config"]["name"]))
            for cell in self._cells
        }

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per run and round; see :func:`~fedapps.results.rounds_frame`."""
        return self._joined(lambda run: run.rounds)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row per run, round, node and phase; see :func:`~fedapps.results.nodes_frame`."""
        return self._joined(lambda run: run.nodes)

    @cached_property
    def held_out(self) -> pd.DataFrame:
        """A row per run, held-out node and model; see :func:`~fedapps.results.held_out_frame`."""
        return self._joined(lambda run: run.held_out)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """The final metrics, a row per run, without the prefix ``test.``."""
        return pd.DataFrame(
            [
                {"method": method, "seed": seed, **at, **metrics}
                for at, part in self._parts()
                for method, seeds in part.runs.items()
                for seed, metrics in seeds.items()
            ]
        )

    @cached_property
    def table(self) -> pd.DataFrame:
        """Mean, standard deviation (``std``) and half the width of the mean's 95 % interval (``half``) over the seeds.

        A row per method and metric; ``std`` and ``half`` are NaN with one seed. ``seeds`` counts those that finished.
        """
        return pd.DataFrame(
            [
                {
                    "method": method,
                    **at,
                    "metric": metric,
                    "mean": one.mean,
                    "std": math.nan if one.sd is None else one.sd,
                    "half": math.nan if one.half is None else one.half,
                    "seeds": one.seeds,
                }
                for at, part in self._parts()
                for method, metrics in part.table.items()
                for metric, one in metrics.items()
            ]
        )

    @cached_property
    def tests(self) -> pd.DataFrame:
        """The paired tests over seeds, a row per metric and pair of methods; ``p_holm`` is corrected."""
        return pd.DataFrame(
            [
                {
                    **at,
                    "metric": test.metric,
                    "a": test.a,
                    "b": test.b,
                    "seeds": test.difference.seeds,
                    "mean_difference": test.difference.mean,
                    **{name: getattr(test.difference, name) for name in ("low", "high", "p", "p_holm")},
                    "nodes_lower": test.nodes_lower,
                    "nodes_higher": test.nodes_higher,
                }
                for at, part in self._parts()
                for test in part.tests
            ]
        )

    @cached_property
    def failed(self) -> pd.DataFrame:
        """The runs that failed, a row per run, with their last ``round`` and the ``reason``."""
        names = ["method", "seed", "round", "reason"]
        rows = [{**asdict(run), **at} for at, part in self._parts() for run in part.failed]
        return pd.DataFrame(rows, columns=None if rows else names)

    def _repr_html_(self) -> str:
        index = [name for name in self.table.columns if name not in ("metric", "mean", "std", "half", "seeds")]
        return str(self.table.pivot(index=index, columns="metric", values="mean").to_html())

    @cached_property
    def _plan(self) -> Plan:
        return Plan.load(self.folder)

    @cached_property
    def _cells(self) -> list[dict[str, Any]]:
        """The finished runs."""
        failed = {tuple(row.values()) for row in self.failed.drop(columns=["round", "reason"]).to_dict("records")}
        return [cell for cell in self._plan.cells(self.folder) if tuple(self._keys(cell).values()) not in failed]

    def _keys(self, cell: Mapping[str, Any]) -> dict[str, Any]:
        """The method, the seed and the varied keys of a run."""
        varied = {vary.key: cell["config"][vary.key] for vary in self._plan.vary}
        return {"method": self._plan.shown(cell["method"]), "seed": cell["seed"]} | varied

    def _parts(self) -> list[tuple[dict[str, Any], Compared]]:
        """The comparison at each point of the grid, or the only one, each with the point."""
        whole = self._data.comparison
        assert whole is not None  # there is a compare.json
        return [(dict(part.point), part) for part in whole.varied] or [({}, whole)]

    def _joined(self, frame: Callable[[RunResult], pd.DataFrame]) -> pd.DataFrame:
        run_keys = [self._keys(cell) for cell in self._cells]
        frames = [
            with_columns(frame(run), {name: value for name, value in keys.items() if name != "method"}, after="method")
            for keys, run in zip(run_keys, self.runs.values(), strict=True)
        ]
        return pd.concat(frames, ignore_index=True)


def opened(folder: Path) -> RunResult | PipelineResult | ComparisonResult:
    """The result of a run, a pipeline or a comparison.

    Raises
    ------
    ValueError
        If there is no such folder, nothing of this kind in it, or a file is malformed.
    """
    if (folder / "plan.json").exists():
        return ComparisonResult(folder)
    if not (folder / "config.toml").exists() and any(folder.glob("*/config.toml")):
        return PipelineResult(folder)
    return RunResult(folder)
