"""Recipes: run-config files by name or by path."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.base.options import did_you_mean
from fedapps.base.text_files import flattened, read_toml, shown

from .pipelines import Pipeline, stage_tables

RECIPES = Path(__file__).parents[1] / "recipes"

Value = bool | int | float | str


def recipes() -> dict[str, str]:
    """The recipes of this package by name, each with the comment on its first line."""
    lines = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0]
        for path in sorted(RECIPES.glob("*.toml"), key=lambda path: path.stem)
    }
    return {name: line.removeprefix("#").strip() for name, line in lines.items()}


def read_recipe(recipe: Path, overrides: Mapping[str, Value] | None = None) -> dict[str, Value]:
    """Read the flat run config of a recipe with one run, or of one stage of a pipeline.

    Parameters
    ----------
    recipe : Path
        A run-config file, or the name of a recipe of this package; with a pipeline, ``RECIPE:STAGE``. The key ``base``
        names another recipe whose keys are the defaults. The table ``compare`` is ignored; see
        :func:`recipe_comparison`.
    overrides : mapping, optional
        Keys that override the recipe.

    Raises
    ------
    ValueError
        If the file or its base does not exist, or cannot be read; if it has a pipeline and no stage is named; if the
        stage does not exist or needs a file of another stage. The message names the recipe.
    """
    path, stage = _path_and_stage(recipe)
    content = _read(path, ())
    if stage and not content.stages:
        raise ValueError(f"recipe {recipe}: {path} has no pipeline, so there is no stage {stage!r}; leave out :{stage}")
    if stage:
        return content.pipeline(path).alone(stage, overrides or {})
    if content.stages:
        raise ValueError(
            f"recipe {path}: a pipeline of {len(content.stages)} runs; name one of its stages as RECIPE:STAGE: "
            + ", ".join(f"{path}:{name}" for name in content.stages)
        )
    return {**_without_compare(content.keys), **(overrides or {})}


def read_pipeline(recipe: Path) -> Pipeline | None:
    """Read the pipeline of a recipe; ``None`` if it has one run, or ``recipe`` names one stage.

    Raises
    ------
    ValueError
        If the file or its base does not exist, or cannot be read.
    """
    path, stage = _path_and_stage(recipe)
    content = _read(path, ())
    return None if stage or not content.stages else content.pipeline(path)


def recipe_comparison(recipe: Path, key: str) -> str:
    """A key of the table ``compare`` of a recipe or a stage; empty if it is not set.

    Parameters
    ----------
    recipe : Path
    key : "vary" or "seed-keys"
        ``vary`` is a key with its values, such as ``vpr.split=random,proximity``; ``seed-keys`` are keys that take the
        value of the seed.
    """
    path, stage = _path_and_stage(recipe)
    content = _read(path, ())
    return str({**content.keys, **content.stages.get(stage, {})}.get(f"compare.{key}", ""))


@cache
def packaged_keys(name: str) -> Mapping[str, Value] | None:
    """The flat run config of a recipe or stage of this package, by its :func:`recipe_name`; ``None`` for another name.

    Keys of a pipeline that name files of its other stages are missing or as written.
    """
    stem, _, stage = name.partition(":")
    if not (RECIPES / f"{stem}.toml").exists():
        return None
    content = _read(RECIPES / f"{stem}.toml", ())
    return _without_compare({**content.keys, **content.stages.get(stage, {})})


def recipe_name(recipe: Path) -> str:
    """The name of a recipe without folder and suffix: ``NAME`` or ``NAME:STAGE``."""
    path, stage = _path_and_stage(recipe)
    return f"{path.stem}:{stage}" if stage else path.stem


def _path_and_stage(recipe: Path) -> tuple[Path, str]:
    """The parts of ``RECIPE:STAGE``; an existing file is no stage, and the stage may be missing."""
    head, _, stage = recipe.name.rpartition(":")
    return (recipe.with_name(head), stage) if head and not recipe.exists() else (recipe, "")


@dataclass(frozen=True)
class _Content:
    """The flat keys of a recipe and its bases, and the keys of each pipeline stage."""

    keys: dict[str, Value]
    stages: dict[str, dict[str, Value]]

    def pipeline(self, path: Path) -> Pipeline:
        stages = {stage: _without_compare(own) for stage, own in self.stages.items()}
        return Pipeline(str(path), _without_compare(self.keys), stages)

    def over(self, base: "_Content") -> "_Content":
        """With the keys and stages of ``base`` as defaults; its stages come first."""
        names = dict.fromkeys([*base.stages, *self.stages])
        stages = {name: {**base.stages.get(name, {}), **self.stages.get(name, {})} for name in names}
        return _Content({**base.keys, **self.keys}, stages)


def _read(path: Path, above: tuple[Path, ...]) -> _Content:
    if not path.exists() and (RECIPES / f"{path.name.removesuffix('.toml')}.toml").exists():
        path = RECIPES / f"{path.name.removesuffix('.toml')}.toml"
    if not path.exists():
        named = f"base = {path.name!r} of {above[-1]}: " if above else ""
        files = [file.name for file in path.parent.glob("*.toml")]
        meant = did_you_mean(path.name, [*files, *recipes()])
        raise ValueError(
            f"{named}no recipe {path}" + (meant or f": give a run-config file or one of {', '.join(recipes())}")
        )
    try:
        tables = read_toml(path)
        stages = stage_tables(tables.pop("pipeline")) if "pipeline" in tables else {}
        own = _Content(
            _values(flattened(tables)), {name: _values(keys, f"pipeline.{name}.") for name, keys in stages.items()}
        )
    except ValueError as error:
        raise ValueError(f"recipe {path} cannot be read: {str(error).removeprefix(f'{path}: ')}") from error
    if path in above:
        raise ValueError(f"recipe {path}: its chain of bases leads back to it: {' -> '.join(str(p) for p in above)}")
    base = own.keys.pop("base", "")
    if not base:
        return own
    beside = path.parent / f"{base}.toml"
    return own.over(_read(beside if beside.exists() else Path(str(base)), (*above, path)))


def _values(flat: dict[str, Any], prefix: str = "") -> dict[str, Value]:
    for key, value in flat.items():
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"{prefix}{key} = {shown(value)}: must be a number, a string, true or false")
        if key.startswith("compare.") and key not in ("compare.vary", "compare.seed-keys"):
            raise ValueError(f"{prefix}{key}: unknown key; the table compare has only the keys vary and seed-keys")
    return flat


def _without_compare(keys: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in keys.items() if not key.startswith("compare.")}
