"""From a run folder to one self-contained page that a person can read: `write_report(folder)`."""

from __future__ import annotations

from pathlib import Path

from clients.files import write_whole

from .json_files import ReportError
from .page import render
from .run_data import RunData, read_run

__all__ = ["ReportError", "RunData", "read_run", "write_report"]


def write_report(run_folder: Path) -> Path:
    """Write `report.html` into a run folder, from nothing but the files in it.

    Args:
        run_folder: a folder that `read_run` can read; the run may be unfinished.

    Returns:
        The path of the report. A report that was there is replaced in one step.

    Raises:
        ReportError: the folder is missing or malformed; the message names the file and the line.
    """
    page = render(read_run(run_folder))
    target = run_folder / "report.html"
    write_whole(target, page.encode())
    return target
