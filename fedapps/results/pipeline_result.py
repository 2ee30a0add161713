"""The result of a pipeline."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from .run_result import RunResult


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
