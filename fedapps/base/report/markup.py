"""HTML from templates. The parts that all sections are made of stand in ``templates/parts.html.md``.

The templates are HTML, CSS and JavaScript. Their names end in .md because the report of a deployed run is written from
a Flower app bundle, which carries no such files (``flwr.common.constant.FAB_INCLUDE_PATTERNS``).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .formats import counted, headline_of
from .tables import Strong

_PARTS = Path(__file__).with_name("templates")


def render(folder: Path, template: str, **values: Any) -> str:
    """The text of a template of a folder, such as ``page.html.md``. Values are escaped unless they are ``Markup``."""
    return _environment(folder).get_template(template).render(values)


def section_markup(folder: Path, name: str, **values: Any) -> Markup:
    """The markup of a section: the macro of this name in ``sections.html.md`` of a folder; see :func:`render`."""
    return Markup(getattr(_environment(folder).get_template("sections.html.md").module, name)(**values))


def part(name: str, *values: Any, **named: Any) -> Markup:
    """The markup of one of the parts; see :func:`render`."""
    return Markup(getattr(_environment(_PARTS).get_template("parts.html.md").module, name)(*values, **named))


@cache
def _environment(folder: Path) -> Environment:
    environment = Environment(
        loader=FileSystemLoader([folder, _PARTS]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"counted": counted, "headline_of": headline_of}
    environment.tests |= {"strong": lambda cell: isinstance(cell, Strong)}
    return environment
