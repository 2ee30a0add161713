"""The options of tasks, methods and trackers: dataclass fields with a text, the allowed values and a search range."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import log
from typing import Any, TypeAlias, TypeVar


@dataclass(frozen=True)
class Range:
    """All numbers from ``low`` to ``high``.

    Parameters
    ----------
    low, high : float
        Inclusive bounds, ``low < high``.
    log : bool
        Whether values are drawn uniformly on a logarithmic scale; ``low`` must then be above 0.

    Raises
    ------
    ValueError
        The bounds are not in order, or ``low`` has no logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"{self}: the lower bound must be below the upper bound")
        if self.log and self.low <= 0:
            raise ValueError(f"{self}: the lower bound of a logarithmic range must be above 0")

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{',log' if self.log else ''}"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high

    def is_near_end(self, value: float) -> bool:
        """Whether a value of the range is within a twentieth of its length, on its scale, from an end.

        A value outside it, such as a default of 0 that stands for another key, is not.
        """
        if value not in self:
            return False
        low, high, point = (log(v) if self.log else v for v in (self.low, self.high, value))
        return not 0.05 <= (point - low) / (high - low) <= 0.95


@dataclass(frozen=True)
class Around:
    """All numbers from ``value / factor`` to ``value * factor`` on a logarithmic scale, around the present value.

    Suits learning rates, whose size depends on the model and the optimizer. ``factor`` must be above 1.
    """

    factor: float

    def __str__(self) -> str:
        return f"value/{self.factor:g}..value*{self.factor:g},log"


@dataclass(frozen=True)
class Choices:
    """A few values, at least one."""

    values: tuple[bool | int | float | str, ...]

    def __str__(self) -> str:
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in self.values)

    def __contains__(self, value: object) -> bool:
        return value in self.values


Search: TypeAlias = Range | Around | Choices


def range_at(search: Search, value: Any, limits: Mapping[str, Any]) -> Range | Choices | None:
    """Return the search range of an option at its present value.

    Parameters
    ----------
    search : Search
        The declared range.
    value : float
        The present value.
    limits : mapping
        The metadata of the option, of which ``minimum`` and ``maximum`` bound a range around the value.

    Returns
    -------
    Range, Choices or None
        ``None`` if there is no range around the value, because it is 0.
    """
    if not isinstance(search, Around):
        return search
    low, high = value / search.factor, value * search.factor
    if limits.get("minimum") is not None:
        low = max(low, limits["minimum"])
    if limits.get("maximum") is not None:
        high = min(high, limits["maximum"])
    return Range(low, high, log=True) if 0 < low < high else None


Options = TypeVar("Options")
Value = TypeVar("Value")
_WHOLE = 2**53  # whole numbers up to here are exact as float


@dataclass(frozen=True)
class NoOptions:
    """No options."""


def option(
    default: Any,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    choices: Sequence[str] | None = None,
    path: bool = False,
    data: bool = False,
    search: Search | None = None,
) -> Any:
    """Return a dataclass field with its description and its allowed values.

    Parameters
    ----------
    default : bool, int, float or str
        The default value. Its type is the type of the option.
    doc : str
        The description that ``fedapps list --keys`` shows.
    minimum, maximum : float, optional
        Inclusive bounds.
    above : float, optional
        Exclusive lower bound.
    choices : sequence of str, optional
        The allowed strings.
    path : bool
        Whether the string may name a file or folder, or several separated by commas.
    data : bool
        Whether the option decides which data the nodes have. Results on other data are not compared with a paper's.
    search : Search, optional
        The values among which ``fedapps tune`` searches; the option is not tuned if missing.

    Raises
    ------
    TypeError
        ``default`` is of another type.
    """
    if not isinstance(default, (bool, int, float, str)):
        raise TypeError(f"option({default!r}): the default must be a number, a string or a bool, which gives the type")
    limits = {"minimum": minimum, "maximum": maximum, "above": above, "choices": choices}
    return field(default=default, metadata={"doc": doc, "path": path, "data": data, "search": search, **limits})


_OPTION_FIELDS: dict[type, dict[str, Field[Any]]] = {}


def label_keys(labels: Sequence[str]) -> dict[str, str | int]:
    """Return the key ``labels`` that lists labels, as :func:`split_names` reads it.

    It is ``classes``, their number, if a comma or blanks in a label make the list ambiguous.
    """
    if any("," in label or label != label.strip() for label in labels):
        return {"classes": len(labels)}
    return {"labels": ",".join(labels)}


def split_names(names: str) -> tuple[str, ...]:
    """Split a string of names at its commas."""
    return tuple(name.strip() for name in names.split(",") if name.strip())


def under_prefix(prefix: str, values: Mapping[str, Value]) -> dict[str, Value]:
    """The values whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name, such as that of a parameter, matches one of the glob patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def key_of(field_name: str) -> str:
    """Return the run-config key of a field: ``rate_power`` becomes ``rate-power``, ``lambda_`` becomes ``lambda``."""
    return field_name.rstrip("_").replace("_", "-")


def option_fields(cls: type) -> dict[str, Field[Any]]:
    """Return the fields of a dataclass of options by key; those of a dataclass nested in it stand in its place."""
    if cls not in _OPTION_FIELDS:  # every message of a node asks for those of several classes
        by_key: dict[str, Field[Any]] = {}
        for own in fields(cls):
            nested = is_dataclass(own.default)
            by_key |= option_fields(type(own.default)) if nested else {key_of(own.name): own}
        _OPTION_FIELDS[cls] = by_key
    return _OPTION_FIELDS[cls]


def option_values(options: Any) -> dict[str, Any]:
    """Return the values of options by key, as :func:`option_fields` has them."""
    by_key: dict[str, Any] = {}
    for own in fields(options):
        value = getattr(options, own.name)
        by_key |= option_values(value) if is_dataclass(value) else {key_of(own.name): value}
    return by_key


def with_values(options: Options, values: Mapping[str, Any]) -> Options:
    """Return options with other values, by the name of their fields, also of fields of nested dataclasses."""
    changes: dict[str, Any] = {}
    for own in fields(options):  # type: ignore[arg-type]
        value = getattr(options, own.name)
        if is_dataclass(value):
            changes[own.name] = with_values(value, values)
        elif own.name in values:
            changes[own.name] = values[own.name]
    return replace(options, **changes)  # type: ignore[type-var]


def allowed(metadata: Any, kind: type) -> str:
    """Describe the values that a field allows, for error messages and documentation."""
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


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: ``"; did you mean 'rounds'?"``; empty if no known name is close.

    ``prefix`` is written before the known name. One is close from the similarity ``cutoff`` on, at most 1.
    """
    close = get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"; did you mean {prefix + close[0]!r}?" if close else ""


def parse_options(cls: type, values: dict[str, Any], prefix: str = "") -> tuple[dict[str, Any], list[str]]:
    """Check values from a run config against a dataclass of options.

    Parameters
    ----------
    cls : type
        The dataclass.
    values : dict of str to object
        Values by key (``rate-power``).
    prefix : str
        Prefix of the keys in messages, for example ``"vpr."``.

    Returns
    -------
    tuple of dict and list of str
        The values by the name of their fields, and one message for each invalid value or unknown key. Nothing is
        raised, so that the caller can report the errors of several sections together.
    """
    arguments: dict[str, Any] = {}
    errors: list[str] = []
    known = option_fields(cls)
    for key, value in values.items():
        name = prefix + key
        if key not in known:
            names = ", ".join(prefix + k for k in sorted(known))
            errors.append(f"{name}: unknown key" + (did_you_mean(key, known, prefix) or f"; known keys: {names}"))
            continue
        declared = known[key]
        kind = type(declared.default)
        if kind is float and type(value) is int and abs(value) <= _WHOLE:
            value = float(value)
        if type(value) is not kind or not within(value, declared.metadata):
            errors.append(f"{name} = {value!r}: must be {allowed(declared.metadata, kind)}")
            continue
        arguments[declared.name] = value
    return arguments, errors


def within(value: Any, limits: Mapping[str, Any]) -> bool:
    """Whether a value is among those that the metadata of a field allow; NaN never is."""
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
