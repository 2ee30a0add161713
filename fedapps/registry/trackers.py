"""Trackers by their names: the modules of ``fedapps/trackers``, and the entry points ``fedapps.trackers`` of others."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from fedapps import trackers
from fedapps.trackers.base import Tracker

from .plugins import load, plugins

GROUP = "fedapps.trackers"


@cache
def own_trackers() -> Mapping[str, type[Tracker]]:
    """The trackers of this package by their names, in the order of their modules."""
    found: dict[str, type[Tracker]] = {}
    for module in iter_modules(trackers.__path__):
        place = import_module(f"{trackers.__name__}.{module.name}")
        kinds = [kind for kind in vars(place).values() if isinstance(kind, type) and issubclass(kind, Tracker)]
        found |= {kind.name: kind for kind in kinds if kind.__module__ == place.__name__ and "name" in vars(kind)}
    return found


def tracker_names() -> tuple[str, ...]:
    """The names of all trackers, this package's first."""
    return (*own_trackers(), *(name for name in plugins(GROUP) if name not in own_trackers()))


@cache
def tracker_class(name: str) -> type[Tracker]:
    """The class of a tracker.

    Raises
    ------
    ValueError
        The name is unknown, or the entry point of another package cannot be used.
    """
    if name in own_trackers():
        return own_trackers()[name]
    if name not in plugins(GROUP):
        raise ValueError(f"{name!r} is unknown; known trackers: {', '.join(tracker_names())}")
    kind: type[Tracker] = load(plugins(GROUP)[name], Tracker)
    return kind


def usable_trackers() -> Mapping[str, type[Tracker]]:
    """All trackers by their names, without those of other packages that cannot be imported."""
    found: dict[str, type[Tracker]] = {}
    for name in tracker_names():
        try:
            found[name] = tracker_class(name)
        except ValueError:  # raised again when a run config names it
            continue
    return found


def tracker_lines() -> Mapping[str, str]:
    """One line of help for each tracker; why it cannot be used for a damaged one."""
    lines = {}
    for name in tracker_names():
        try:
            lines[name] = tracker_class(name).line
        except ValueError as error:
            lines[name] = f"cannot be used: {error}"
    return lines
