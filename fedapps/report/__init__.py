"""The HTML report of a run or a comparison: ``write_report(folder)`` writes one self-contained page."""

from __future__ import annotations

from pathlib import Path

from fedapps.base.atomic import write_whole
from fedapps.base.errors import ReportError

from .run_data import RunData, read_run

__all__ = ["ReportError", "RunData", "read_run", "write_report"]


def write_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run folder. An existing report is replaced atomically.

    Parameters
    ----------
    run_folder : Path
        Folder of a run, which may be unfinished, or of a comparison; see :func:`read_run`.

    Returns
    -------
    Path
        The path of the report.

    Raises
    ------
    ReportError
        If the folder is missing or a file is malformed; the message names the file and the line.
    """
    from .page import page  # imports Matplotlib, which a run needs only at its end

    text = page(read_run(run_folder))
    target = run_folder / "report.html"
    write_whole(target, text.encode())
    return target
