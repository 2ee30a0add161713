"""Names of arrays in snapshots: prefixes for the parts of a state, and the keys of nodes."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from numpy.typing import NDArray

from .arrays import Arrays


def under(prefix: str, state: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names start with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def flat_by_key(prefix: str, key: str, **parts: Arrays) -> Arrays:
    """Flatten the arrays of a node for a snapshot: ``<prefix><key>.<part>.<name>`` -> array.

    Dots and other special characters of the key are escaped; :func:`nested_by_key` is the inverse.
    """
    escaped = quote(key, safe="").replace(".", "%2E")
    return {f"{prefix}{escaped}.{part}.{name}": a for part, arrays in parts.items() for name, a in arrays.items()}


def nested_by_key(prefix: str, state: Arrays) -> dict[str, dict[str, Arrays]]:
    """Key -> part -> named arrays, from all arrays of ``state`` whose names start with ``prefix``."""
    found: dict[str, dict[str, Arrays]] = {}
    for full, array in under(prefix, state).items():
        escaped, part, name = full.split(".", 2)
        found.setdefault(unquote(escaped), {}).setdefault(part, {})[name] = array
    return found
