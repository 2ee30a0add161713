"""The run config."""

from __future__ import annotations

from html import escape

from fedapps.report.markup import details, render_section, table
from fedapps.report.run_data import RunData

ORDER = 170


def section(run: RunData) -> str | None:
    """A collapsed table of all keys; None if the folder has no config."""
    if not run.config:
        return None
    rows = [[f"<code>{escape(key)}</code>", escape(str(value))] for key, value in run.config.items()]
    return render_section("config", "Run config", details(f"{len(rows)} keys", table(["key", "value"], rows, texts=2)))
