"""HTML from the templates of the report and the board."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedapps.base.errors import headline_of

from .caveats import SIGNIFICANT, about_claims, about_tests
from .formats import counted, format_bytes, format_duration, format_number, format_p_value
from .metrics import describe
from .records import PairedTest
from .tables import difference_formats

# The templates are HTML, CSS and JavaScript. Their names end in .md because the report of a deployed run is written
# from a Flower app bundle, which carries no such files (flwr.common.constant.FAB_INCLUDE_PATTERNS).
_FOLDERS = [Path(__file__).parents[1] / room / "templates" for room in ("report", "board")]


def _about_tests(tests: Sequence[PairedTest]) -> str:
    together = max(Counter(test.metric for test in tests).values())
    return about_tests(tests[0].seeds, together)


_environment = Environment(
    loader=FileSystemLoader(_FOLDERS),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_environment.filters |= {
    "about_claims": about_claims,
    "about_tests": _about_tests,
    "axis": lambda name: describe(name).axis,
    "bytes": format_bytes,
    "counted": counted,
    "difference_formats": difference_formats,
    "headline_of": headline_of,
    "duration": format_duration,
    "number": format_number,
    "p_cell": lambda value: format_p_value(value, decimals=4),
    "p_value": format_p_value,
}
_environment.tests |= {"nan": math.isnan, "significant": lambda p: p < SIGNIFICANT}


def render(template: str, **values: Any) -> str:
    """The text of a template, such as ``page.html.md``. Values are escaped unless they are ``Markup``."""
    return _environment.get_template(template).render(values)


def macro(template: str, name: str, *values: Any, **named: Any) -> Markup:
    """The markup of one macro of a template; see :func:`render`."""
    return Markup(getattr(_environment.get_template(template).module, name)(*values, **named))


def render_section(name: str, **values: Any) -> Markup:
    """The markup of a section: the macro of this name in ``sections.html.md``."""
    return macro("sections.html.md", name, **values)
