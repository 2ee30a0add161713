"""All keys that a run config can have, with their defaults and their meaning."""

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w

from fedapps.registry.methods import METHODS, method_class
from fedapps.registry.tasks import own_tasks, profiles_class, usable_tasks
from fedapps.tasks.options import allowed, option_fields

from .run_config import RunConfig
from .trackers import TRACKERS


def options_by_key(prefix: str, options: type) -> dict[str, Any]:
    """The dataclass fields of options by their keys, ``prefix`` included."""
    return {prefix + key: setting for key, setting in option_fields(options).items()}


def declared() -> dict[str, Any]:
    """The fields of every key in ``[tool.flwr.app.config]``: the run's, and those of what this package registers."""
    found = options_by_key("", RunConfig)
    for name in own_tasks():
        found |= options_by_key(f"{name}.", profiles_class(name).Options)
    for name, kind in METHODS.own.items():
        found |= options_by_key(f"{name}.", kind.Options)
    for name, tracker in TRACKERS.own.items():
        found |= options_by_key(f"{name}.", tracker.Options)
    return found


def defaults() -> dict[str, Any]:
    """Every declared key with its default, flat."""
    return {key: setting.default for key, setting in declared().items()}


def all_keys() -> dict[str, Any]:
    """The fields of every key: the declared ones, and those of other packages."""
    found = declared()
    for name, task in usable_tasks().items():
        found |= options_by_key(f"{name}.", task.Options)
    for name, method in METHODS.usable().items():
        found |= options_by_key(f"{name}.", method.Options)
    for name, tracker in TRACKERS.usable().items():
        found |= options_by_key(f"{name}.", tracker.Options)
    return found


def path_keys() -> set[str]:
    """The keys that name files or folders."""
    return {key for key, setting in all_keys().items() if setting.metadata.get("path")}


def described(task: str = "", methods: Iterable[str] = ()) -> dict[str, dict[str, str]]:
    """What every key means, allows and defaults to, by group: the run, each task, each method, each tracker.

    Parameters
    ----------
    task : str
        Only the keys of this task; all tasks if empty.
    methods : iterable of str
        Only the keys of these methods, by name; all methods if empty.
    """
    chosen = list(methods) or METHODS.usable()
    groups = {"run": options_by_key("", RunConfig)}
    groups |= {
        f"task {t}": options_by_key(f"{t}.", profiles_class(t).Options) for t in ([task] if task else usable_tasks())
    }
    groups |= {f"method {name}": options_by_key(f"{name}.", method_class(name).Options) for name in chosen}
    if not task and not methods:
        groups |= {f"tracker {name}": options_by_key(f"{name}.", k.Options) for name, k in TRACKERS.usable().items()}
    return {
        group: {
            key: f"{s.metadata['doc']} ({_toml(s.default)}; {allowed(s.metadata, type(s.default))}{_tuned(s.metadata)})"
            for key, s in settings.items()
        }
        for group, settings in groups.items()
        if settings
    }


def _tuned(metadata: Mapping[str, Any]) -> str:
    return f"; tuned over {metadata['search']}" if metadata.get("search") else ""


def _toml(value: Any) -> str:
    """A value as it is written in a run-config file."""
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def with_extra(given: Mapping[str, Any]) -> dict[str, Any]:
    """The flat run config with the keys of ``extra`` beside the others.

    Raises
    ------
    ValueError
        ``extra`` is no TOML inline table, or has a key that must stand beside it.
    """
    text = str(given.get("extra", "")).strip()
    if not text:
        return dict(given)
    try:
        table = tomllib.loads(f"extra = {{{text}}}")
        extra = flattened(table.pop("extra"))
        if table:
            raise ValueError("unbalanced braces")
    except ValueError as error:  # TOMLDecodeError is one
        raise ValueError(
            f"extra = {text!r}: must be keys of a TOML inline table, such as tabular.alpha = 0.3, tabular.name = "
            f"'digits' ({error})"
        ) from None
    if twice := sorted(extra.keys() & (given.keys() | declared().keys())):
        raise ValueError(f"extra: {', '.join(twice)}: set this beside extra, which is for keys of other packages")
    return {**given, **extra}


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one flat mapping with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def for_flower(flat: Mapping[str, Any]) -> dict[str, Any]:
    """A flat run config as Flower takes it: keys that the app does not declare travel in ``extra``."""
    own = declared()
    others = {key: value for key, value in flat.items() if key not in own}
    if not others:
        return dict(flat)
    pairs = [f"{key} = {_toml(value)}" for key, value in others.items()]
    return {key: value for key, value in flat.items() if key in own} | {"extra": ", ".join(pairs)}
