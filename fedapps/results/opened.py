"""The result in a folder of an earlier run."""

from pathlib import Path

from .comparison_result import ComparisonResult
from .pipeline_result import PipelineResult
from .run_result import RunResult


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
