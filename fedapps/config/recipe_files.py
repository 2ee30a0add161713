"""Recipes: run-config files by name or by path, with one run or with a pipeline of several."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.base.options import did_you_mean
from fedapps.base.text_files import flattened, read_toml, shown

#: Keys that the pipeline sets for each stage, and the key of a recipe file.
_OWN_KEYS = ("name", "output-dir", "resume", "base")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PLACEHOLDER = re.compile(r"\{([\w-]+)\}")


@dataclass(frozen=True)
class StageRun:
    """The run of one stage of a pipeline.

    Attributes
    ----------
    stage : str
    config : mapping
        The flat run config, with the name and the folder of the run.
    awaits : frozenset of str
        The keys whose values are in the run folders of earlier stages.
    """

    stage: str
    config: Mapping[str, Any]
    awaits: frozenset[str]


@dataclass(frozen=True)
class Pipeline:
    """The stages of a recipe.

    A string value may contain ``{STAGE}``, which stands for the run folder of that earlier stage.

    Attributes
    ----------
    recipe : str
        The recipe as it is named on the command line.
    keys : mapping
        The flat run config that all stages share.
    stages : mapping of str to mapping
        The flat keys of each stage, which replace those of ``keys``, in the order of the runs.
    """

    recipe: str
    keys: Mapping[str, Any]
    stages: Mapping[str, Mapping[str, Any]]

    def runs(self, overrides: Mapping[str, Any], folder: Path) -> list[StageRun]:
        """The runs of all stages.

        Parameters
        ----------
        overrides : mapping
            Keys of the run config that replace those of every stage.
        folder : Path
            The folder of the pipeline, absolute; each stage gets a run folder in it.

        Raises
        ------
        ValueError
            If a placeholder does not name an earlier stage.
        """
        runs: list[StageRun] = []
        for stage in self.stages:
            keys = self._given(stage, overrides)
            earlier = {run.stage: folder / run.stage for run in runs}
            filled = {key: self._filled(stage, key, value, earlier) for key, value in keys.items()}
            output = {"name": stage, "output-dir": str(folder)}
            runs.append(StageRun(stage, filled | output, frozenset(key for key in keys if keys[key] != filled[key])))
        return runs

    def alone(self, stage: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The flat run config of one stage that is run without the others.

        Raises
        ------
        ValueError
            If the stage does not exist, or a value of the recipe has a placeholder.
        """
        if stage not in self.stages:
            raise ValueError(f"recipe {self.recipe}: no stage {stage!r}; its stages are {', '.join(self.stages)}")
        keys = self._given(stage, overrides)
        for key, value in keys.items():
            if key not in overrides and (others := _placeholders(value)):
                raise ValueError(
                    f"recipe {self.recipe}:{stage}: {key} = {value!r}: {{{others[0]}}} is the run folder of another "
                    f"stage; add --set {key}=FILE, or run the whole pipeline with `fedapps run {self.recipe}`"
                )
        return keys

    def _given(self, stage: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        return {**self.keys, **self.stages[stage], **overrides}

    def _filled(self, stage: str, key: str, value: Any, earlier: Mapping[str, Path]) -> Any:
        for other in _placeholders(value):
            if other not in earlier:
                known = f"earlier stages: {', '.join(earlier)}" if earlier else "this is the first stage"
                raise ValueError(
                    f"recipe {self.recipe}, stage {stage}: {key} = {value!r}: {{{other}}} must name an earlier stage; "
                    f"{known}"
                )
            value = value.replace(f"{{{other}}}", str(earlier[other]))
        return value


def stage_tables(pipeline: Any) -> dict[str, dict[str, Any]]:
    """The flat keys of each stage in the table ``pipeline`` of a recipe file.

    Raises
    ------
    ValueError
        If there is no stage, a stage is no table, its name cannot be the name of a folder, or it has a key that the
        pipeline sets.
    """
    if not isinstance(pipeline, Mapping):
        raise ValueError(f"pipeline = {pipeline!r}: must be tables [pipeline.NAME], one for each stage")
    if not pipeline:
        raise ValueError("pipeline: has no stages; add a table [pipeline.NAME] for each stage, or remove it")
    return {stage: _stage_keys(stage, table) for stage, table in pipeline.items()}


def _stage_keys(stage: str, table: Any) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValueError(f"pipeline.{stage} = {table!r}: must be a table [pipeline.{stage}] with the keys of a stage")
    if not _NAME.fullmatch(stage):
        raise ValueError(
            f"pipeline.{stage!r}: names a folder, so it must start with a letter or a digit and consist of letters, "
            "digits, - and _"
        )
    for key in _OWN_KEYS:
        if key in table:
            raise ValueError(
                f"pipeline.{stage}.{key}: a stage cannot have this key; set it above the tables, for the whole pipeline"
            )
    return flattened(table)


def _placeholders(value: Any) -> list[str]:
    return _PLACEHOLDER.findall(value) if isinstance(value, str) else []


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
        ``vary`` is a key with its values, such as ``vpr.split=random,proximity``, or a list of such keys, which are
        then one a line; ``seed-keys`` are keys that take the value of the seed.
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
    axes = flat.get("compare.vary")
    if isinstance(axes, list) and all(isinstance(axis, str) for axis in axes):
        flat = {**flat, "compare.vary": "\n".join(axes)}
    for key, value in flat.items():
        if not isinstance(value, (bool, int, float, str)):
            raise ValueError(f"{prefix}{key} = {shown(value)}: must be a number, a string, true or false")
        if key.startswith("compare.") and key not in ("compare.vary", "compare.seed-keys"):
            raise ValueError(f"{prefix}{key}: unknown key; the table compare has only the keys vary and seed-keys")
    return flat


def _without_compare(keys: Mapping[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in keys.items() if not key.startswith("compare.")}
