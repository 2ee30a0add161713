"""Run a recipe: one federation, or the stages of a pipeline."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.base.errors import RunFailedError
from fedapps.base.options import split_names
from fedapps.config.keys import path_keys
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import Pipeline, StageRun, read_pipeline, read_recipe, recipe_name
from fedapps.runs.owner import owned
from fedapps.runs.run_folder import PIPELINE, RunFolder, begun
from fedapps.runs.tables import summary_table

from .inputs import resolve
from .launch import Runner, launch, unfinished
from .plan import new_folder, timed_name


def launch_recipe(recipe: Path | None, overrides: Mapping[str, Any], runner: Runner, output_dir: str) -> Path:
    """Run a recipe and print its results.

    Parameters
    ----------
    recipe : Path or None
        Name of a recipe, or path of a run-config file; ``None`` runs the app's defaults.
    overrides : mapping
        Keys of the run config that override the recipe.
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
        :func:`launch_pipeline` for later stages.
    RunFailedError
        If a method or a stage did not finish.
    """
    if recipe is None:
        return launch(overrides, runner, output_dir)
    if pipeline := read_pipeline(recipe):
        return launch_pipeline(pipeline, overrides, runner, output_dir)
    return launch(read_recipe(recipe, overrides), runner, output_dir)


def launch_pipeline(pipeline: Pipeline, overrides: Mapping[str, Any], runner: Runner, output_dir: str) -> Path:
    """Run all stages of a pipeline and print their results.

    The first stage that fails ends the pipeline. With the key ``resume``, finished stages are skipped.

    Parameters
    ----------
    pipeline : Pipeline
    overrides : mapping
        Keys of the run config that replace those of every stage.
    runner : Runner
    output_dir : str
        Where the folder of the pipeline is created, unless the run config has ``output-dir``.

    Returns
    -------
    Path
        The folder of the pipeline, which has a run folder for each stage.

    Raises
    ------
    ValueError
        Before anything runs, if a placeholder, a config or a folder is invalid in any stage, or the data of a stage
        that needs no file of an earlier stage. When another stage begins, if its data or that file are invalid.
    RunFailedError
        If a stage did not finish.
    """
    general = {**pipeline.keys, **overrides}
    name, resume = str(general.get("name", "")), general.get("resume") is True
    parent = resolve({key: value for key, value in general.items() if key == "output-dir"}, output_dir)["output-dir"]
    start = time.monotonic()
    with ExitStack() as stack:
        if resume and name:
            folder = Path(parent) / name
            if folder.is_dir():
                stack.enter_context(owned(folder))
        else:
            exists = "choose another name, remove the folder, or set resume = true to continue the pipeline"
            made = new_folder(parent, name, timed_name(recipe_name(Path(pipeline.recipe))), exists)
            folder = stack.enter_context(made)
            stack.enter_context(owned(folder))
        advice = f"repeat the command with --set name={folder.name} --set resume=true"
        stages = [replace(run, config=resolve(run.config, output_dir)) for run in pipeline.runs(overrides, folder)]
        if resume:
            stages = _resumed(stages, folder)
        finished = {run.stage for run in stages if _check(run, runner)}
        stack.enter_context(_marked(folder, [run.stage for run in stages]))
        print(f"{len(stages)} stages in {folder}; if interrupted, {advice}", flush=True)
        _run_stages(stages, finished, runner, advice)
    print(f"\nfinished {len(stages)} stages in {(time.monotonic() - start) / 60:.1f} minutes")
    for run in stages:
        path = folder / run.stage
        print(f"\n{run.stage}: {path / 'report.html'}\n{indent(summary_table(RunFolder(path, '')), '  ')}")
    return folder


@contextmanager
def _marked(folder: Path, stages: Sequence[str]) -> Iterator[None]:
    """Name the stages in the folder of the pipeline; afterwards, this stays only if a stage has begun."""
    write_whole(folder / PIPELINE, json.dumps({"stages": stages}).encode())
    try:
        yield
    finally:
        if not any((folder / stage / "config.toml").exists() for stage in stages):
            (folder / PIPELINE).unlink()


def _run_stages(stages: Sequence[StageRun], finished: Set[str], runner: Runner, advice: str) -> None:
    for number, run in enumerate(stages, start=1):
        heading = f"stage {number} of {len(stages)}: {run.stage}"
        if run.stage in finished:
            print(f"\n{heading} has already run to its end", flush=True)
            continue
        print(f"\n{heading}", flush=True)
        try:
            _run(run, runner)
        except RunFailedError as error:
            raise RunFailedError(f"{error}\nthe pipeline failed in {heading}; to resume it, {advice}") from error
        except ValueError as error:
            raise ValueError(f"{heading}: {error}\nto resume the pipeline, {advice}") from error


def _resumed(stages: Sequence[StageRun], folder: Path) -> list[StageRun]:
    """The stages, of which only those are resumed that have a run folder."""
    if not any((folder / run.stage / "config.toml").exists() for run in stages):
        raise ValueError(
            f"resume = true, but no stage of the pipeline is in {folder}: set name and output-dir to those of the "
            "pipeline to resume"
        )
    return [replace(run, config={**run.config, "resume": begun(folder / run.stage)}) for run in stages]


def _check(run: StageRun, runner: Runner) -> bool:
    """Check a stage as far as possible before the first one runs.

    Returns
    -------
    bool
        Whether the stage has already run to its end.
    """
    try:
        config = parse(run.config, files_exist=not run.awaits)
        if config.run.resume and not unfinished(config):
            RunFolder.check(config, run_id=0)
            return True
        runner.check(config)
        if not run.awaits:
            runner.check_data(config)
    except ValueError as error:
        raise ValueError(f"stage {run.stage}: {error}") from error
    return False


def _run(run: StageRun, runner: Runner) -> None:
    for key in sorted(path_keys(run.awaits)):
        for name in split_names(run.config[key]):
            if not Path(name).exists():
                raise ValueError(
                    f"{key} = {name!r}: no such file, but all earlier stages have run to their end; name a file that "
                    "one of them wrote"
                )
    config = parse(run.config)
    if run.awaits:
        runner.check_data(config)
    runner.run(config)
