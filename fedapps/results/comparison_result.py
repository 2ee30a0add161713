"""The result of a comparison, and what opens the result of any folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedapps.comparison.matrix import Plan
from fedapps.runs.comparisons import Compared

from .run_result import PipelineResult, ReportedResult, RunResult, with_columns


class ComparisonResult(ReportedResult):
    """The result of a comparison: methods with several seeds, and for each value of a varied key if there is one.

    The varied key is a column of every frame, after ``method`` and ``seed``.

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
        """The result of each finished run by (method, seed), or by (method, seed, value) if a key was varied."""
        return {
            tuple(self._keys(cell).values()): RunResult(self.folder / str(cell["config"]["name"]))
            for cell in self._cells
        }

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per run and round; see :func:`~fedapps.results.run_result.rounds_frame`."""
        return self._joined(lambda run: run.rounds)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """A row per run, round, node and phase; see :func:`~fedapps.results.run_result.nodes_frame`."""
        return self._joined(lambda run: run.nodes)

    @cached_property
    def held_out(self) -> pd.DataFrame:
        """A row per run, held-out node and model; see :func:`~fedapps.results.run_result.held_out_frame`."""
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

        A row per method and metric; ``half`` is NaN with one seed. ``seeds`` counts those that finished.
        """
        return pd.DataFrame(
            [
                {
                    "method": method,
                    **at,
                    "metric": metric,
                    "mean": one.mean,
                    "std": one.sd or 0.0,
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
        """The method, the seed and the varied key of a run."""
        vary = self._plan.vary
        return {"method": cell["method"], "seed": cell["seed"]} | ({vary.key: cell["config"][vary.key]} if vary else {})

    def _parts(self) -> list[tuple[dict[str, Any], Compared]]:
        """The comparison at each value of the varied key, or the only one, each with the key and its value."""
        whole = self._data.comparison
        assert whole is not None  # there is a compare.json
        if whole.varied is None:
            return [({}, whole)]
        return [({whole.varied.key: part.value}, part) for part in whole.varied.values]

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
