"""The run config."""

from __future__ import annotations

from markupsafe import Markup

from fedapps.base.report.tables import Table, text_columns
from fedapps.report.run_data import RunData

from . import section_of

ORDER = 170


def section(run: RunData) -> Markup | None:
    """A collapsed table of all keys; None if the folder has no config."""
    if not run.config:
        return None
    rows = [[Markup("<code>{}</code>").format(key), str(value)] for key, value in run.config.items()]
    return section_of("configuration", keys=Table(text_columns(["key", "value"], texts=2), rows))
