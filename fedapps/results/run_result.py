"""The result of one run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedapps.runs.run_folder import RunFolder
from fedapps.strategies.rounds.snapshots import under

from .frames import metrics_frame, nodes_frame, rounds_frame
from .reported_result import ReportedResult


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
        snapshot = RunFolder(self.folder, "").checkpoints(chosen).latest()
        if snapshot is None:
            raise ValueError(f"method = {chosen!r}: {self.folder} has no checkpoint of it")
        return {name: np.asarray(array) for name, array in under("shared.", snapshot.arrays).items()}

    def _repr_html_(self) -> str:
        return str(self.metrics.to_html())
