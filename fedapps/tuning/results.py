"""The results of a tuning: a table, the content of ``tune.json``, and a recipe with the tuned settings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from textwrap import shorten
from typing import Any

import tomli_w

from fedapps.base.options import Range
from fedapps.base.report.formats import number
from fedapps.base.report.tables import text_table

from .plan import TuningPlan
from .ranges import Domain, setting_text
from .study import Final, Trial, best_trial

#: Keys of a run that no recipe has.
_OF_A_RUN = ("name", "output-dir", "resume", "seed")


def summarise(
    plan: TuningPlan, trials: Mapping[str, Sequence[Trial]], finals: Mapping[str, Sequence[Final]]
) -> dict[str, Any]:
    """The content of ``tune.json``.

    Parameters
    ----------
    plan : TuningPlan
    trials : mapping
        All trials of each method, by label.
    finals : mapping
        The finalists of each method, by label.

    Returns
    -------
    dict
        ``recipe``, ``metric``, ``mode`` ("min" or "max"), ``trials`` (per method), ``seeds``, ``final_seeds``, and
        ``methods``: by label the ``ranges``, the metric with the ``current`` settings and with the ``tuned`` ones
        (``None`` if their runs failed), the tuned ``settings``, those of them that are ``near_end`` of their range, the
        ``label``, which is empty if all trials failed, the number of trials by state in ``counts``, all ``trials``, and
        the ``finals``.
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
    head = {"recipe": plan.recipe, "metric": plan.metric, "mode": plan.mode, "trials": plan.trials}
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
    return "\n\n".join([first, text_table(header, rows), *_advice(tuning), *_about_failures(tuning)])


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
    return next((shorten(trial["error"], 300, placeholder=" ...") for trial in tuned["trials"] if trial["error"]), "")


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
    methods = ",".join(tuned["label"] for tuned in tuning["methods"].values() if tuned["label"])
    for key, value in {**plan.config, "methods": methods}.items():
        owner, _, name = key.rpartition(".")
        if key not in _OF_A_RUN:
            (tables.setdefault(owner, {}) if owner else tables)[name] = value
    if plan.seed_keys:
        tables["compare"] = {"seed-keys": ",".join(plan.seed_keys)}
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
