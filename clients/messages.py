"""What a node reads from a message: values by the types and ranges that fields declare, and arrays of real numbers.

A message comes from outside. Each of its values is checked here, before any work.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from fedapps.strategies.arrays import from_record
from fedapps.strategies.wire import CLIPPING_NORM
from flwr.app import ArrayRecord

from fedapps.base.options import allowed, key_of, within

Arrays = dict[str, np.ndarray]
Fields = TypeVar("Fields")
_REAL = frozenset("fiub")


def with_config(settings: Fields, config: Mapping[str, Any]) -> Fields:
    """Return a dataclass instance with the values of a message's config in its fields.

    Parameters
    ----------
    settings : dataclass instance
        Its numbers, strings and booleans can be in the config, within the limits that a field declares
        (:func:`fedapps.base.options.option`). Fields of other types come from the message's records.
    config : mapping
        Values by key: a field ``batch_size`` has the key ``batch-size``. Other keys are ignored. A whole number is
        allowed for a float.

    Raises
    ------
    ValueError
        A value has another type than the field, is out of its range or not finite; the message names the key.
    """
    changes: dict[str, Any] = {}
    for key, name, limits in _declared(type(settings)):  # type: ignore[arg-type]
        kind = type(getattr(settings, name)) if key in config else None
        if kind not in (bool, int, float, str):
            continue
        value = config[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind:
            raise ValueError(f"config {key} = {value!r}: must be of type {kind.__name__}")
        if kind is float and not isfinite(value):
            raise ValueError(f"config {key} = {value!r}: must be finite")
        if not within(value, limits):
            raise ValueError(f"config {key} = {value!r}: must be {allowed(limits, kind)}")
        changes[name] = value
    return replace(settings, **changes)  # type: ignore[type-var]


@cache
def _declared(settings: type) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Of each field the key in a message's config, the name, and the limits."""
    return [(key_of(setting.name), setting.name, setting.metadata) for setting in fields(settings)]


def clipping_norm(config: Mapping[str, Any]) -> float | None:
    """The norm to which a message asks to clip the update; ``None`` if it asks for none. It can be infinite.

    Raises
    ------
    ValueError
        It is no number above 0. A norm below 0 would reverse the update, and NaN would send it as it is.
    """
    norm = config.get(CLIPPING_NORM)
    if norm is None:
        return None
    if isinstance(norm, bool) or not isinstance(norm, (int, float)) or not norm > 0:
        raise ValueError(f"config {CLIPPING_NORM} = {norm!r}: must be a number above 0")
    return float(norm)


def read_arrays(name: str, record: ArrayRecord) -> Arrays:
    """The arrays of the record ``name`` of a message. Raises ``ValueError`` for one that cannot be decoded, and as
    :func:`check_real`.
    """
    arrays = from_record(record)
    check_real(name, arrays)
    return arrays


def check_real(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that the arrays of a record hold real numbers.

    Raises
    ------
    ValueError
        One is neither floating-point, integer nor boolean, or has another byte order.
        A model would lose the imaginary part of a complex one.
    """
    for key, array in arrays.items():
        if array.dtype.kind not in _REAL:
            raise ValueError(f"{name}: {key!r} is {array.dtype}: must be floating-point, integer or boolean")
        if not array.dtype.isnative:
            raise ValueError(f"{name}: {key!r} is {array.dtype}: must have the byte order of this machine")
