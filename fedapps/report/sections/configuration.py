"""What was run: the whole run config, to read or to repeat it."""

from __future__ import annotations

from html import escape

from fedapps.report.markup import details, table
from fedapps.report.markup import section as block
from fedapps.report.run_data import RunData

ORDER = 170


def section(run: RunData) -> str | None:
    """The run config, behind a click; None where the folder holds none."""
    if not run.config:
        return None
    rows = [[f"<code>{escape(key)}</code>", escape(str(value))] for key, value in run.config.items()]
    return block("config", "Run config", details(f"{len(rows)} keys", table(["key", "value"], rows, texts=2)))
