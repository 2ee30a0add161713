"""Pipelines: recipes with several runs, one after another, that use files of earlier ones."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedapps.base.text_files import flattened

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
