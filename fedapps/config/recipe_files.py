"""Recipes: run-config files by name or by path."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[1] / "recipes"

Value = bool | int | float | str


def recipes() -> dict[str, str]:
    """Names of the recipes that come with fedapps, with the comment on their first line."""
    lines = {
        path.stem: path.read_text().splitlines()[0]
        for path in sorted(RECIPES.glob("*.toml"), key=lambda path: path.stem)
    }
    return {name: line.removeprefix("#").strip() for name, line in lines.items()}


def read_recipe(path: Path) -> dict[str, Value]:
    """The flat run config in a recipe file.

    ``base`` names a recipe whose keys hold where the file has none; the table ``compare`` is not of the run config.
    Raises ``ValueError`` that names the file when it cannot be read.
    """
    return {key: value for key, value in _keys(path, ()).items() if not key.startswith("compare.")}


def recipe_vary(path: Path) -> str:
    """What a comparison of the recipe varies, ``key=value,value``: ``vary`` of its table ``compare``, or ''."""
    return str(_keys(path, ()).get("compare.vary", ""))


def _keys(path: Path, above: tuple[Path, ...]) -> dict[str, Value]:
    if not path.exists() and (RECIPES / f"{path.name.removesuffix('.toml')}.toml").exists():
        path = RECIPES / f"{path.name.removesuffix('.toml')}.toml"
    try:
        keys = _flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        named = f"base = {path.name!r} of {above[-1]}: " if above else ""
        known = ", ".join(recipes())
        raise ValueError(f"{named}no recipe {path}: give a run-config file, or one of {known}") from None
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    unknown = [key for key in keys if key.startswith("compare.") and key != "compare.vary"]
    if unknown:
        raise ValueError(f"recipe {path}: {unknown[0]} is unknown; the table compare has vary")
    if path in above:
        raise ValueError(f"recipe {path}: it is its own base, by {', '.join(str(p) for p in above)}")
    base = keys.pop("base", "")
    if not base:
        return keys
    beside = path.parent / f"{base}.toml"
    return _keys(beside if beside.exists() else Path(str(base)), (*above, path)) | keys


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Value]:
    flat: dict[str, Value] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            flat[prefix + key] = value
        else:
            raise ValueError(f"{prefix}{key} = {value!r}: must be a number, a string, true or false")
    return flat
