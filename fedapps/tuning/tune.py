"""Tune the methods of a recipe on validation data: a table, ``tune.json``, and a recipe with the tuned settings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from fedapps.app.cost import guarantee_of_all
from fedapps.base.atomic import write_whole
from fedapps.base.errors import RunFailedError, ends_of
from fedapps.base.options import Range
from fedapps.base.report.numbers import number
from fedapps.base.report.tables import text_table
from fedapps.config.recipe_files import read_recipe, recipe_comparison, recipe_name
from fedapps.config.run_config import RunConfig
from fedapps.launch.inputs import check_data, resolve
from fedapps.launch.launch import check_engine, check_machine
from fedapps.launch.plan import following, timed_name
from fedapps.launch.progress import MatrixProgress, log_of
from fedapps.registry.expressions import labels, shown_names
from fedapps.runs.owner import owned
from fedapps.sim.matrix import run_chains

from .plan import Domain, TuningPlan, setting_text
from .study import Final, Study, Trial, best_trial, optuna_module
from .trials import MethodTrials, run_trial

#: Keys of a run that no recipe has.
_OF_A_RUN = ("name", "output-dir", "resume", "seed")


def summarise(
    plan: TuningPlan, trials: Mapping[str, Sequence[Trial]], finals: Mapping[str, Sequence[Final]], privacy: str
) -> dict[str, Any]:
    """The content of ``tune.json``.

    Parameters
    ----------
    plan : TuningPlan
    trials : mapping
        All trials of each method, by label.
    finals : mapping
        The finalists of each method, by label.
    privacy : str
        The guarantee of all runs together.

    Returns
    -------
    dict
        ``recipe``, ``metric``, ``mode`` ("min" or "max"), ``trials`` (per method), ``seeds``, ``final_seeds``,
        ``privacy``, and ``methods``: by label the ``ranges``, the metric with the ``current`` settings and with the
        ``tuned`` ones (``None`` if their runs failed), the tuned ``settings``, those of them that are ``near_end`` of
        their range, the ``label``, which is empty if all trials failed, the number of trials by state in ``counts``,
        all ``trials``, and the ``finals``.
    """
    methods = {}
    for label, of_method in trials.items():
        number = best_trial(of_method, finals[label], plan.mode)
        best = None if number is None else of_method[number]
        settings = dict(best.settings) if best else {}
        values = {number_of: trial.value for number_of, trial in enumerate(of_method)}
        if any(final.value is not None for final in finals[label]):
            values |= {final.trial: final.value for final in finals[label]}
        states = [trial.state for trial in of_method]
        methods[label] = {
            "ranges": {argument: str(domain) for argument, domain in plan.spaces[label].items()},
            "current": values[0],
            "tuned": None if number is None else values[number],
            "settings": settings,
            "near_end": [a for a, value in settings.items() if _is_near_end(plan.spaces[label][a], value)],
            "label": best.label if best else "",
            "counts": {state: states.count(state) for state in ("complete", "pruned", "failed")},
            "trials": [asdict(trial) for trial in of_method],
            "finals": [asdict(final) for final in finals[label]],
        }
    head = {"recipe": plan.recipe, "metric": plan.metric, "mode": plan.mode, "trials": plan.trials, "privacy": privacy}
    return head | {"seeds": list(plan.seeds), "final_seeds": list(plan.final_seeds), "methods": methods}


def tuning_text(tuning: Mapping[str, Any]) -> str:
    """The table of a tuning, from the content of ``tune.json``."""
    rows = []
    for label, tuned in tuning["methods"].items():
        settings = ", ".join(f"{key} = {setting_text(value)}" for key, value in tuned["settings"].items())
        states = [str(tuned["counts"][state]) for state in ("complete", "pruned", "failed")]
        values = [_value(tuned["current"]), _value(tuned["tuned"])]
        rows.append(
            [label, *values, *states, settings or ("nothing to tune" if tuned["label"] else "all trials failed")]
        )
    header = ["method", "current", "tuned", "complete", "pruned", "failed", "settings"]
    better = "lower" if tuning["mode"] == "min" else "higher"
    seeds = ", ".join(map(str, tuning["seeds"]))
    first = (
        f"{tuning['metric']} ({better} is better) with the current and with the tuned settings of each method, "
        f"{tuning['trials']} trials per method, seed{'s'[: len(tuning['seeds']) - 1]} {seeds}"
    )
    if tuning["final_seeds"]:
        first += f"; finalists also with {', '.join(map(str, tuning['final_seeds']))}"
    privacy = [tuning["privacy"]] if tuning["privacy"] else []
    return "\n\n".join([first, text_table(header, rows), *privacy, *_advice(tuning), *_about_failures(tuning)])


def _value(value: float | None) -> str:
    return "-" if value is None else number(value)


def _about_failures(tuning: Mapping[str, Any]) -> list[str]:
    """The methods that are left out of the tuned recipe, with the reason of their first failure."""
    lines = [
        f"{label}: all trials failed, so the tuned recipe leaves it out; the first: {_first_error(tuned)}"
        for label, tuned in tuning["methods"].items()
        if not tuned["label"]
    ]
    return ["\n".join(lines)] if lines else []


def _first_error(tuned: Mapping[str, Any]) -> str:
    return next((ends_of(trial["error"], 300) for trial in tuned["trials"] if trial["error"]), "")


def _advice(tuning: Mapping[str, Any]) -> list[str]:
    """Which ranges to widen; no text if there are none."""
    lines = [
        f"  {label}: {argument} = {setting_text(tuned['settings'][argument])} of {tuned['ranges'][argument]}"
        for label, tuned in tuning["methods"].items()
        for argument in tuned["near_end"]
    ]
    if not lines:
        return []
    return ["\n".join(["Near an end of the range; a better value may lie outside. Widen it with --range:", *lines])]


def _is_near_end(domain: Domain, value: Any) -> bool:
    return isinstance(domain, Range) and domain.is_near_end(value)


def tuned_recipe(plan: TuningPlan, tuning: Mapping[str, Any]) -> str:
    """The text of a recipe with the keys of the plan and the tuned settings as arguments of the methods."""
    tables: dict[str, Any] = {}
    names = shown_names(str(plan.config["methods"]))
    methods = ",".join(
        f"{tuned['label']} as {names[label]!r}" if label in names else tuned["label"]
        for label, tuned in tuning["methods"].items()
        if tuned["label"]
    )
    for key, value in {**plan.config, "methods": methods}.items():
        owner, _, name = key.rpartition(".")
        if key not in _OF_A_RUN:
            (tables.setdefault(owner, {}) if owner else tables)[name] = value
    compare = {"seed-keys": ",".join(plan.seed_keys), "vary": plan.vary}
    if any(compare.values()):
        tables["compare"] = {key: value for key, value in compare.items() if value}
    seeds = ", ".join(map(str, plan.seeds))
    further = f", {plan.finalists} finalists also with {', '.join(map(str, plan.final_seeds))}" * bool(plan.finalists)
    comments = [
        f"# {plan.recipe}, tuned: {plan.trials} trials per method on {plan.metric}, seeds {seeds}{further}",
        *(
            f"# {label}: {_value(tuned['current'])} before, {_value(tuned['tuned'])} tuned"
            for label, tuned in tuning["methods"].items()
        ),
    ]
    return "\n".join([*comments, tomli_w.dumps(tables)])


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
        The content of ``tune.json``; see :func:`~fedapps.tuning.tune.summarise`.

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
    after = first_seed + seeds
    plan = TuningPlan(
        recipe=recipe_name(recipe),
        config=base | {"methods": named},
        trial_keys=dict(trial_overrides or {}),
        methods=tuple(labels(named)),
        seeds=tuple(range(first_seed, first_seed + seeds)),
        trials=trials,
        ranges=tuple(ranges),
        engine=engine,
        seed_keys=following(recipe, seed_keys, keys),
        vary=recipe_comparison(recipe, "vary"),
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
    plan.check_trial_keys()
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
    trials, finals = {of.method: of.study.trials() for of in methods}, {of.method: of.finals for of in methods}
    tuning = summarise(plan, trials, finals, guarantee_of_all(sorted((folder / "trials").glob("*"))))
    if not any(tuned["label"] for tuned in tuning["methods"].values()):
        raise RunFailedError(f"nothing to write:\n\n{tuning_text(tuning)}")
    text = tuned_recipe(plan, tuning)
    write_whole(folder / "tune.json", (json.dumps(tuning, indent=2) + "\n").encode())
    for path in filter(None, (folder / "tuned.toml", write)):
        write_whole(path, text.encode())
    print(f"\n{tuning_text(tuning)}\n\ntuned recipe: {write or folder / 'tuned.toml'}")
    return tuning
