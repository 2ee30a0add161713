"""The results of a tuning: a table, the content of ``tune.json``, and a recipe with the tuned settings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tomli_w

from fedapps.runs.tables import number, text_table
from fedapps.tasks.search import Range

from .plan import TuningPlan
from .ranges import Domain, setting_text
from .study import Trial, best_trial

#: Keys of a run that no recipe has.
_OF_A_RUN = ("name", "output-dir", "resume", "seed")


def summarise(plan: TuningPlan, trials: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    """The content of ``tune.json``.

    Parameters
    ----------
    plan : TuningPlan
    trials : mapping
        All trials of each method, by label.

    Returns
    -------
    dict
        ``recipe``, ``metric``, ``mode`` ("min" or "max"), ``trials`` (per method), ``seeds``, and ``methods``: by label
        the ``ranges``, the metric with the ``current`` settings and with the ``tuned`` ones, the tuned ``settings``,
        those of them that are ``near_end`` of their range, the ``label``, the number of trials by state in ``counts``,
        and all ``trials``.
    """
    methods = {}
    for label, of_method in trials.items():
        best = best_trial(of_method, plan.mode)
        states = [trial.state for trial in of_method]
        methods[label] = {
            "ranges": {argument: str(domain) for argument, domain in plan.spaces[label].items()},
            "current": of_method[0].value,
            "tuned": best.value,
            "settings": dict(best.settings),
            "near_end": [a for a, value in best.settings.items() if _is_near_end(plan.spaces[label][a], value)],
            "label": best.label,
            "counts": {state: states.count(state) for state in ("complete", "pruned", "failed")},
            "trials": [asdict(trial) for trial in of_method],
        }
    head = {"recipe": plan.recipe, "metric": plan.metric, "mode": plan.mode}
    return head | {"trials": plan.trials, "seeds": list(plan.seeds), "methods": methods}


def tuning_text(tuning: Mapping[str, Any]) -> str:
    """The table of a tuning, from the content of ``tune.json``."""
    rows = []
    for label, found in tuning["methods"].items():
        settings = ", ".join(f"{key} = {setting_text(value)}" for key, value in found["settings"].items())
        states = [str(found["counts"][state]) for state in ("complete", "pruned", "failed")]
        rows.append([label, number(found["current"]), number(found["tuned"]), *states, settings or "nothing to tune"])
    header = ["method", "current", "tuned", "complete", "pruned", "failed", "settings"]
    better = "lower" if tuning["mode"] == "min" else "higher"
    seeds = ", ".join(map(str, tuning["seeds"]))
    first = (
        f"{tuning['metric']} ({better} is better) with the current and with the tuned settings of each method, "
        f"{tuning['trials']} trials per method, seed{'s'[: len(tuning['seeds']) - 1]} {seeds}"
    )
    return "\n\n".join([first, text_table(header, rows), *_advice(tuning)])


def _advice(tuning: Mapping[str, Any]) -> list[str]:
    """Which ranges to widen; no text if there are none."""
    lines = [
        f"  {label}: {argument} = {setting_text(found['settings'][argument])} of {found['ranges'][argument]}"
        for label, found in tuning["methods"].items()
        for argument in found["near_end"]
    ]
    if not lines:
        return []
    return ["\n".join(["Near an end of the range; a better value may lie outside. Widen it with --range:", *lines])]


def _is_near_end(domain: Domain, value: Any) -> bool:
    return isinstance(domain, Range) and domain.is_near_end(value)


def tuned_recipe(plan: TuningPlan, tuning: Mapping[str, Any]) -> str:
    """The text of a recipe with the keys of the plan and the tuned settings as arguments of the methods."""
    tables: dict[str, Any] = {}
    methods = ",".join(found["label"] for found in tuning["methods"].values())
    for key, value in {**plan.config, "methods": methods}.items():
        owner, _, name = key.rpartition(".")
        if key not in _OF_A_RUN:
            (tables.setdefault(owner, {}) if owner else tables)[name] = value
    seeds = ", ".join(map(str, plan.seeds))
    comments = [
        f"# {plan.recipe}, tuned: {plan.trials} trials per method on {plan.metric}, seeds {seeds}",
        *(
            f"# {label}: {number(found['current'])} before, {number(found['tuned'])} tuned"
            for label, found in tuning["methods"].items()
        ),
    ]
    return "\n".join([*comments, tomli_w.dumps(tables)])
