"""Trackers by their names, and their keys: which of them record a run, and their options."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedapps import trackers
from fedapps.base.options import key_of, parse_options, split_names
from fedapps.registry.classes import Registry
from fedapps.trackers import Tracker

#: The modules of ``fedapps/trackers``, and the entry points ``fedapps.trackers`` of others.
TRACKERS: Registry[Tracker] = Registry(trackers, Tracker, "fedapps.trackers", "trackers")


def split_keys(flat: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of a flat run config without those of trackers, and the keys of trackers, such as ``mlflow.uri``.

    The key ``trackers`` is among the former. Trackers that it names may be unknown here, because nodes need no tracker.
    """
    named = flat.get("trackers")
    owners = {*TRACKERS.names(), *(split_names(named) if isinstance(named, str) else ())}
    own = {key: value for key, value in flat.items() if "." in key and key.partition(".")[0] in owners}
    return {key: value for key, value in flat.items() if key not in own}, own


def read_trackers(named: str, keys: Mapping[str, Any]) -> tuple[dict[str, Tracker], list[str]]:
    """The trackers of a run by their names, and a message for each error.

    Parameters
    ----------
    named : str
        The value of the key ``trackers``.
    keys : mapping
        The second result of :func:`split_keys`.
    """
    trackers: dict[str, Tracker] = {}
    errors: list[str] = []
    for name in dict.fromkeys((*split_names(named), *(key.partition(".")[0] for key in keys))):
        own = {key.removeprefix(f"{name}."): value for key, value in keys.items() if key.startswith(f"{name}.")}
        try:
            kind = TRACKERS.find(name)
        except ValueError as error:
            errors.append(f"trackers: {error}")
            continue
        arguments, bad = parse_options(kind.Options, own, f"{name}.")
        errors += bad
        if name in split_names(named) and not bad:
            tracker = kind(kind.Options(**arguments))
            if conflict := tracker.conflict():
                errors.append(f"trackers = {named!r}: {name} {conflict}")
            trackers[name] = tracker
    return trackers, errors


def tracker_keys(trackers: Mapping[str, Tracker]) -> dict[str, Any]:
    """The options of trackers as flat keys of the run config."""
    return {
        f"{name}.{key_of(field)}": value
        for name, tracker in trackers.items()
        for field, value in asdict(tracker.options).items()
    }
