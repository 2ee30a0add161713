"""The sections of a report. Each is a function from the run to markup; None if there is nothing to show.

A section is a module with the function ``section(run)`` and the number ``ORDER``, its place on the page: results have
small numbers, details large ones. The modules of this folder are found by their names; those of other packages by the
entry points of the group ``fedapps.sections``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from fedapps.registry.classes import plugins

GROUP = "fedapps.sections"


def sections() -> list[ModuleType]:
    """All sections in the order of the page.

    Raises
    ------
    ValueError
        An entry point names no module with ``section`` and ``ORDER``.
    """
    own = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    return sorted([*own, *map(_other, plugins(GROUP))], key=lambda module: float(module.ORDER))


def _other(name: str) -> ModuleType:
    found = plugins(GROUP)[name]
    module = found.load()
    if not isinstance(module, ModuleType) or not callable(getattr(module, "section", None)):
        raise ValueError(
            f"entry point {name!r} = {found.value!r} of the group {GROUP!r}: must name a module with the function "
            "section(run) and the number ORDER"
        )
    return module
