"""Recipes: run-config files by name or by path."""

import tomllib
from pathlib import Path
from typing import Any

from .keys import flattened

RECIPES = Path(__file__).parents[1] / "recipes"

Value = bool | int | float | str


def recipes() -> dict[str, str]:
    """The recipes of this package by name, each with the comment on its first line."""
    lines = {
        path.stem: path.read_text().splitlines()[0]
        for path in sorted(RECIPES.glob("*.toml"), key=lambda path: path.stem)
    }
    return {name: line.removeprefix("#").strip() for name, line in lines.items()}


def read_recipe(path: Path) -> dict[str, Value]:
    """Read the flat run config of a recipe.

    Parameters
    ----------
    path : Path
        A run-config file, or the name of a recipe of this package. The key ``base`` names another recipe whose keys
        are the defaults. The table ``compare`` is ignored; see :func:`recipe_vary`.

    Raises
    ------
    ValueError
        If the file or its base does not exist, or cannot be read. The message names the file.
    """
    return {key: value for key, value in _keys(path, ()).items() if not key.startswith("compare.")}


def recipe_vary(path: Path) -> str:
    """The key ``compare.vary`` of a recipe, such as ``vpr.split=random,proximity``; empty if it has none."""
    return str(_keys(path, ()).get("compare.vary", ""))


def _keys(path: Path, above: tuple[Path, ...]) -> dict[str, Value]:
    if not path.exists() and (RECIPES / f"{path.name.removesuffix('.toml')}.toml").exists():
        path = RECIPES / f"{path.name.removesuffix('.toml')}.toml"
    try:
        keys = _values(flattened(tomllib.loads(path.read_text(encoding="utf-8"))))
    except FileNotFoundError:
        named = f"base = {path.name!r} of {above[-1]}: " if above else ""
        known = ", ".join(recipes())
        raise ValueError(f"{named}no recipe {path}: give a run-config file or one of {known}") from None
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"recipe {path} cannot be read: {error}") from error
    unknown = [key for key in keys if key.startswith("compare.") and key != "compare.vary"]
    if unknown:
        raise ValueError(f"recipe {path}: {unknown[0]}: unknown key; the table compare has only the key vary")
    if path in above:
        raise ValueError(f"recipe {path}: its chain of bases leads back to it: {' -> '.join(str(p) for p in above)}")
    base = keys.pop("base", "")
    if not base:
        return keys
    beside = path.parent / f"{base}.toml"
    return _keys(beside if beside.exists() else Path(str(base)), (*above, path)) | keys


def _values(flat: dict[str, Any]) -> dict[str, Value]:
    for key, value in flat.items():
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"{key} = {value!r}: must be a number, a string, true or false")
    return flat
