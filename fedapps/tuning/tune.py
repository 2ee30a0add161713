"""Tune the methods of a recipe on validation data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.base.errors import RunFailedError
from fedapps.base.options import split_names
from fedapps.config.recipe_files import read_recipe, recipe_comparison, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import check_data, resolve
from fedapps.launch.launch import check_engine, check_machine
from fedapps.launch.plan import timed_name
from fedapps.launch.progress import MatrixProgress, log_of
from fedapps.registry.expressions import labels
from fedapps.runs.owner import owned
from fedapps.sim.matrix import run_chains

from .plan import TuningPlan
from .results import summarise, tuned_recipe, tuning_text
from .study import Study, optuna_module
from .trials import MethodTrials, run_trial


def tune_recipe(
    recipe: Path,
    *,
    trials: int,
    methods: Sequence[str] = (),
    seeds: int = 1,
    first_seed: int = 0,
    seed_keys: Sequence[str] = (),
    finalists: int = 0,
    finalist_seeds: int = 2,
    ranges: Sequence[str] = (),
    engine: str = "inline",
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    trial_overrides: Mapping[str, Any] | None = None,
    output_dir: str = "runs",
    write: Path | None = None,
) -> dict[str, Any]:
    """Search the settings of each method that are best on validation data; print them and write a recipe with them.

    Each method gets the same number of trials, the first with its current settings. No trial reads test data.

    Parameters
    ----------
    recipe : Path
        Name of a recipe, or path of a run-config file.
    trials : int
        Number of trials of each method, at least 2.
    methods : sequence of str
        Methods such as ``fedprox``; if empty, the recipe's methods. Arguments, such as ``fedprox(mu=0.1)``, are fixed.
    seeds : int
        Number of seeds of a trial, at least 1; its value is their mean.
    first_seed : int
        The first seed; the others follow it.
    seed_keys : sequence of str
        Keys that take the value of the seed in each run, such as the seed of a partition. If empty, the recipe decides.
        Keys that ``trial_overrides`` set keep their value.
    finalists : int
        Number of trials of each method that run again with further seeds, the current settings among them; the best
        mean over all seeds wins. 0: the best trial wins as it is.
    finalist_seeds : int
        Number of further seeds.
    ranges : sequence of str
        Search ranges such as ``fedprox.mu=0.001..1,log``, in place of declared ones or beside them.
    engine : "inline" or "ray"
    jobs : int
        Number of methods that are tuned in parallel; 0: one per CPU core.
    overrides : mapping, optional
        Keys of the run config that override the recipe, in the trials and in the tuned recipe.
    trial_overrides : mapping, optional
        Keys that override the recipe in the trials only, such as fewer rounds.
    output_dir : str
        Where the folder of the tuning is created.
    write : Path, optional
        Also write the tuned recipe to this file, which must not exist.

    Returns
    -------
    dict
        The content of ``tune.json``; see :func:`~fedapps.tuning.results.summarise`.

    Raises
    ------
    ValueError
        Before anything runs, if the recipe, a method, a range or an override is invalid, the task has no validation
        data, the folder or the file exists, or Optuna is not installed.
    RunFailedError
        If all trials of all methods fail.
    """
    keys = dict(overrides or {})
    name = timed_name(f"tune-{recipe_name(recipe)}")
    base = resolve(read_recipe(recipe, keys) | {"name": name}, output_dir)
    named = ",".join(methods) or str(base.get("methods", RunConfig.methods))
    follow = tuple(seed_keys) or split_names(recipe_comparison(recipe, "seed-keys"))
    after = first_seed + seeds
    plan = TuningPlan(
        recipe=recipe_name(recipe),
        config=base,
        trial_keys=dict(trial_overrides or {}),
        methods=tuple(labels(named)),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        trials=trials,
        ranges=tuple(ranges),
        engine=engine,
        seed_keys=tuple(key for key in follow if key not in (trial_overrides or {})),
        finalists=finalists,
        final_seeds=tuple(range(after, after + finalist_seeds)) if finalists else (),
    )
    _check(plan, write)
    with plan.new_folder(str(keys.get("name", ""))) as (plan, folder):
        return _carry_out(plan, folder, jobs, write)


def resume_tuning(folder: Path, *, jobs: int = 0, write: Path | None = None) -> dict[str, Any]:
    """Resume an interrupted tuning; it ends as if it had not been interrupted.

    Parameters
    ----------
    folder : Path
        Folder of the tuning.
    jobs, write
        As in :func:`tune_recipe`.

    Returns
    -------
    dict
        The content of ``tune.json``.

    Raises
    ------
    ValueError
        If the folder has no valid plan, or another process works in it.
    RunFailedError
        If all trials of all methods fail.
    """
    plan = TuningPlan.load(folder)
    with owned(folder):
        _check(plan, write)
        return _carry_out(plan, folder.absolute(), jobs, write)


def _check(plan: TuningPlan, write: Path | None) -> None:
    if write and write.exists():
        raise ValueError(f"--write {write}: the file exists; choose another one")
    optuna_module()
    if not any(plan.spaces.values()):
        raise ValueError(f"nothing to tune in {', '.join(plan.methods)}: add a --range")
    plan.check_seed_keys(plan.trial_config)
    check_engine(plan.engine, plan.trial_config.run)
    check_machine(plan.engine, plan.trial_config.run)
    check_data(plan.trial_config)


def _carry_out(plan: TuningPlan, folder: Path, jobs: int, write: Path | None) -> dict[str, Any]:
    database = folder / "study.db"
    methods = [
        MethodTrials(plan, method, folder, Study(database, method, mode=plan.mode, seed=plan.seeds[0]))
        for method in plan.methods
    ]
    left = sum(plan.trials_of(of.method) - len(of.study.trials()) for of in methods) * len(plan.seeds)
    left += sum(plan.finals_of(of.method) for of in methods) * len(plan.final_seeds)
    print(f"at most {left} runs in {folder}; if interrupted, resume: python -m fedapps tune --resume {folder}")
    with MatrixProgress(left) as progress:
        run_chains([of.chain() for of in methods], run_trial, jobs=plan.parallel(jobs), watch=progress, log_of=log_of)
    tuning = summarise(plan, {of.method: of.study.trials() for of in methods}, {of.method: of.finals for of in methods})
    if not any(tuned["label"] for tuned in tuning["methods"].values()):
        raise RunFailedError(f"nothing to write:\n\n{tuning_text(tuning)}")
    text = tuned_recipe(plan, tuning)
    write_whole(folder / "tune.json", (json.dumps(tuning, indent=2) + "\n").encode())
    for path in filter(None, (folder / "tuned.toml", write)):
        write_whole(path, text.encode())
    print(f"\n{tuning_text(tuning)}\n\ntuned recipe: {write or folder / 'tuned.toml'}")
    return tuning
