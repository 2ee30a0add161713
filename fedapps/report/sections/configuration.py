"""The run config."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.report.rendering import render_section
from fedapps.report.run_data import RunData

ORDER = 170


def section(run: RunData) -> Markup | None:
    """A collapsed table of all keys; None if the folder has no config."""
    return render_section("configuration", config=run.config) if run.config else None
