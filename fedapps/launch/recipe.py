"""Run a recipe: one federation, or the stages of a pipeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedapps.config.recipe_files import read_pipeline, read_recipe

from .launch import launch
from .pipeline import launch_pipeline
from .runner import Runner


def launch_recipe(recipe: Path | None, overrides: Mapping[str, Any], runner: Runner, output_dir: str) -> Path:
    """Run a recipe and print its results.

    Parameters
    ----------
    recipe : Path or None
        Name of a recipe, or path of a run-config file; ``None`` runs the app's defaults.
    overrides : mapping
        Keys of the run config that replace those of the recipe.
    runner : Runner
    output_dir : str
        Where the folder is created, unless the run config has ``output-dir``.

    Returns
    -------
    Path
        The run folder, or the folder of the pipeline.

    Raises
    ------
    ValueError
        Before anything runs, if the recipe, the config, the folder or the data are invalid; see
        :func:`~fedapps.launch.pipeline.launch_pipeline` for later stages.
    RunFailedError
        If a method or a stage did not finish.
    """
    if recipe is None:
        return launch(overrides, runner, output_dir)
    if pipeline := read_pipeline(recipe):
        return launch_pipeline(pipeline, overrides, runner, output_dir)
    return launch(read_recipe(recipe, overrides), runner, output_dir)
