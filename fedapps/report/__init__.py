"""The HTML report of a run, a comparison or a fleet: ``write_report(folder)`` writes one self-contained page."""

from __future__ import annotations

from pathlib import Path

from fedapps.base.atomic import write_whole
from fedapps.base.errors import ReportError

from .generations import is_registry, read_fleet
from .run_data import RunData, read_run

__all__ = ["ReportError", "RunData", "read_run", "write_report"]


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a folder. An existing report is replaced atomically.

    Parameters
    ----------
    folder : Path
        Folder of a run, which may be unfinished, or of a comparison (:func:`read_run`); or a registry of champions
        (:func:`fedapps.report.generations.read_fleet`).

    Returns
    -------
    Path
        The path of the report.

    Raises
    ------
    ReportError
        If the folder is missing or a file is malformed; the message names the file and the line.
    """
    from .page import fleet_page, page  # imports Matplotlib, which a run needs only at its end

    text = fleet_page(read_fleet(folder)) if is_registry(folder) else page(read_run(folder))
    target = folder / "report.html"
    write_whole(target, text.encode())
    return target
