"""The sections of a report; :mod:`fedapps.report.page` puts them in order."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedapps.base.report.sections import section_markup

#: The templates of the page and of these sections.
FOLDER = Path(__file__).parents[1] / "templates"


def section_of(name: str, **values: Any) -> Markup:
    """The markup of a section of this folder: the macro of this name in ``sections.html.md``."""
    return section_markup(FOLDER, name, **values)
