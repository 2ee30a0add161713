"""What the results of a run and of a comparison have in common."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from fedapps.report.figures import Drawing
from fedapps.report.page import drawings
from fedapps.report.run_data import read_run


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
