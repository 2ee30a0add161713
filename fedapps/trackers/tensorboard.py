"""TensorBoard: event files in the run folder, read with ``tensorboard --logdir``.

https://www.tensorflow.org/tensorboard, written with torch's SummaryWriter.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedapps.base.atomic import path_name

from .base import TrackedRecord, TrackedRun, Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker):
    """Event files in ``tensorboard/METHOD`` of the run folder.

    A resumed run writes them again from its records, so they have every round once.
    """

    name = "tensorboard"
    line = "TensorBoard: event files in the run folder"
    package = "tensorboard"
    requirement = "fedapps[tensorboard]"

    def open(self, run: TrackedRun) -> TrackedRecord:
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / "tensorboard" / path_name(run.method)
        shutil.rmtree(folder, ignore_errors=True)
        # A TensorBoard that shows the former files drops their rounds when it reads the step to purge from.
        return _EventFiles(SummaryWriter(str(folder), purge_step=1), run.config)


class _EventFiles(TrackedRecord):
    def __init__(self, writer: SummaryWriter, config: Mapping[str, Any]) -> None:
        self._writer, self._config, self._last = writer, dict(config), 0
        rows = "\n".join(f"| `{key}` | `{value}` |" for key, value in self._config.items())
        writer.add_text("run config", f"| key | value |\n|---|---|\n{rows}")
        writer.flush()

    @property
    def last_round(self) -> int:
        return self._last

    def log(self, server_round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)
        self._writer.flush()
        self._last = server_round

    def finish(self, final: Mapping[str, float]) -> None:
        for name, value in final.items():
            self._writer.add_scalar(f"final/{name}", value, self._last)
        self._writer.flush()

    def add_report(self, report: Path) -> None:
        # TensorBoard has no artifacts, so this is the place of the report.
        self._writer.add_text("report", f"`{report}`", self._last)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
