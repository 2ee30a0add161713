"""Options of a task: frozen dataclasses whose fields say what they mean and what they allow."""

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any


def option(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    path: bool = False,
    formerly: str = "",
) -> Any:
    """A dataclass field with its documentation and its allowed values.

    ``minimum`` and ``maximum`` are inclusive, ``above`` is exclusive; ``choices`` lists the allowed strings. With
    ``path`` the string may name a file or a folder, or several separated by commas. ``formerly`` is the key that
    earlier versions had for it.
    """
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices}
    return field(default=default, metadata={"doc": doc, "path": path, "formerly": formerly, **limits})


def key_of(field_name: str) -> str:
    """The run-config key of a field: ``rate_power`` is written ``rate-power``, and ``lambda_`` ``lambda``."""
    return field_name.rstrip("_").replace("_", "-")


def allowed(metadata: Any, kind: type) -> str:
    """What a field allows, in words, for error messages and documentation."""
    if metadata.get("choices"):
        return "one of " + ", ".join(repr(choice) for choice in metadata["choices"])
    noun = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}[kind]
    bounds = []
    if metadata.get("above") is not None:
        bounds.append(f"above {metadata['above']}")
    if metadata.get("minimum") is not None:
        bounds.append(f"at least {metadata['minimum']}")
    if metadata.get("maximum") is not None:
        bounds.append(f"at most {metadata['maximum']}")
    return " ".join([noun, " and ".join(bounds)]).strip()


def parse_options(cls: type, values: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
    """Check ``values`` (kebab-case keys) against the dataclass ``cls``.

    Returns the constructor's keyword arguments and a list with one message for every bad value or
    unknown key; the list is empty when all is well. Nothing is raised, so that errors from several
    sections can be reported together.
    """
    arguments: dict[str, Any] = {}
    errors: list[str] = []
    known = {key_of(f.name): f for f in fields(cls)}
    for key, value in values.items():
        name = prefix + key
        if key not in known:
            errors.append(f"{name}: unknown key; known keys: {', '.join(prefix + k for k in sorted(known))}")
            continue
        declared = known[key]
        kind = type(declared.default)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not kind or not _within(value, declared.metadata):
            errors.append(f"{name} = {value!r}: must be {allowed(declared.metadata, kind)}")
            continue
        arguments[declared.name] = value
    return arguments, errors


def _within(value: Any, limits: Any) -> bool:
    if limits.get("choices") is not None and value not in limits["choices"]:
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value:  # NaN satisfies no bound
            return False
        if limits.get("minimum") is not None and value < limits["minimum"]:
            return False
        if limits.get("maximum") is not None and value > limits["maximum"]:
            return False
        if limits.get("above") is not None and value <= limits["above"]:
            return False
    return True
