"""Checks of what the hooks of a method return: those of other packages are found wrong before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from fedapps.base.options import did_you_mean, key_of
from fedapps.base.text_files import shown

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.config.run_config import RunConfig


def sent_keys(method: Method, server_round: Round) -> dict[str, Scalar]:
    """The keys that a method adds to the config of a round's messages.

    Raises
    ------
    ValueError
        ``round_config`` returns no mapping, or a value that no message can carry.
    """
    given: object = method.round_config(server_round)
    named = f"round_config of the method {method.name!r}"
    if not isinstance(given, Mapping):
        raise ValueError(f"{named} returned {shown(given)}: it must return a dictionary, which can be empty")
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, (bool, int, float, str)):
            raise ValueError(
                f"{named} gives {shown(key)} = {shown(value)}: must be a string with a number, a string, true or false"
            )
    return dict(given)


def check_method(method: Method, run: RunConfig) -> None:
    """Check the keys of the first round and the local parts.

    Raises
    ------
    ValueError
        As :func:`sent_keys`; the local parts are none or cannot be combined; or no local part reads a key.
    """
    from fedapps.clients.composed_parts import composed
    from fedapps.clients.local_part import LocalPart  # torch
    from fedapps.clients.settings import LocalTraining, RoundSettings

    parts = composed(method.local_parts())
    keys = sent_keys(method, Round(run, 1, "train")) | sent_keys(method, Round(run, 1, "evaluate"))
    if any(type(part).read is not LocalPart.read for part in parts):
        return  # it can read any key
    read = [key_of(field.name) for part in parts for field in fields(part)]  # type: ignore[arg-type]
    general = {key_of(field.name) for settings in (RoundSettings, LocalTraining) for field in fields(settings)}
    for key in keys:
        if key not in read and key not in general:
            raise ValueError(
                f"round_config of the method {method.name!r} gives the key {key!r}, which none of its local parts "
                f"reads: a field of a part reads the key of its name; they read {', '.join(read) or 'none'}"
                f"{did_you_mean(key, read)}"
            )
