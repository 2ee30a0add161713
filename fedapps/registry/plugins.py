"""Tasks, methods and report sections of other packages, found by their entry points."""

import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, such as ``fedapps.methods``, by name; none is loaded yet."""
    return _on_path(group, tuple(sys.path))


@lru_cache(maxsize=8)
def _on_path(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """The entry points of a group on the import path ``path``, which must be the present one.

    A search reads the metadata of all installed packages, and parsing one run config asks hundreds of times.
    """
    return {found.name: found for found in entry_points(group=group)}


def load(found: EntryPoint, parent: type) -> Any:
    """The class that an entry point names.

    Raises
    ------
    ValueError
        The import fails, or the object is no subclass of ``parent``, or its ``name`` is not the entry point's.
    """
    where = f"entry point {found.name!r} = {found.value!r} of the group {found.group!r}"
    try:
        loaded = found.load()
    except Exception as error:  # other people's module: whatever it raises, say whose it is
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{where} cannot be imported ({reason}): reinstall its package") from error
    if not (isinstance(loaded, type) and issubclass(loaded, parent)):
        raise ValueError(f"{where}: must name a subclass of {parent.__module__}.{parent.__name__}, not {loaded!r}")
    if getattr(loaded, "name", "") != found.name:
        raise ValueError(f"{where}: must have name = {found.name!r}, not {getattr(loaded, 'name', '')!r}")
    return loaded
