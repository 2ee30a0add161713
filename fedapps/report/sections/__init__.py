"""The sections of a report. Each is a function from the run to markup; None if there is nothing to show.

A section is a module with the function ``section(run)`` and the number ``ORDER``, its place on the page: results have
small numbers, details large ones. The modules of this folder, and ``report_*`` in the folders of tasks, are found by
their names; those of other packages by the entry points of the group ``fedapps.sections``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from markupsafe import Markup

from fedapps.base.report.sections import section_markup
from fedapps.registry import plugins
from fedapps.registry.tasks import own_modules

GROUP = "fedapps.sections"
#: The templates of the page and of these sections.
FOLDER = Path(__file__).parents[1] / "templates"


def sections() -> list[ModuleType]:
    """All sections in the order of the page.

    Raises
    ------
    ValueError
        An entry point names no module with ``section`` and ``ORDER``.
    """
    own = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return sorted([*own, *own_modules("report_"), *map(_other, plugins(GROUP))], key=lambda module: float(module.ORDER))


def section_of(name: str, **values: Any) -> Markup:
    """The markup of a section of this folder: the macro of this name in ``sections.html.md``."""
    return section_markup(FOLDER, name, **values)


def _other(name: str) -> ModuleType:
    point = plugins(GROUP)[name]
    module = point.load()
    if not isinstance(module, ModuleType) or not callable(getattr(module, "section", None)):
        raise ValueError(
            f"entry point {name!r} = {point.value!r} of the group {GROUP!r}: must name a module with the function "
            "section(run) and the number ORDER"
        )
    return module
