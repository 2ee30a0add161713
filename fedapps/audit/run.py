"""Run an audit: check the config, run its jobs in parallel processes, and save the rows of all that have finished."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.base.seeding import derive_seed
from fedapps.config.parsing import Config, parse
from fedapps.config.recipe_files import read_recipe, recipe_name
from fedapps.launch.inputs import resolve
from fedapps.launch.plan import new_folder, timed_name
from fedapps.runs.owner import owned
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.tasks.privacy.audit import (
    Attack,
    Attacker,
    attacker,
    audit,
    frequency,
    gradient_matching,
    row_reading,
    sparse,
    sparse_prior,
    subspace,
)
from fedapps.tasks.privacy.inversion import Inversion
from fedapps.tasks.privacy.sharing import Sharing
from fedapps.tasks.privacy.tokens import Recovery, score

from .plan import ANYBODY, ATTACKS, FIRST_LAYER, GUESSER, ON, SEARCHES, AuditPlan
from .text import audit_text, row_line
from .victim import TrainedVictim, trained_victim, victim_data

#: Weight of the L1 distance in the attack "tag".
TAG_WEIGHT = 0.1
_SHOWN = 3
#: The keys that identify a row.
KEY = ("method", "attacker", "attack", "on", "batch_size")
Row = dict[str, Any]


def run_job(attack: str, on: str, batch_size: int, start: int, stop: int, config: dict[str, Any]) -> None:
    """Attack the sentences ``start`` to ``stop`` (exclusive) and write the reconstructed words as JSON.

    Methods and attackers that share the same gradients share one search (:mod:`fedapps.tasks.privacy.audit`); each of
    them is charged with the whole time of that search.

    Parameters
    ----------
    attack : str
        One of :data:`.plan.ATTACKS`.
    on : str
        One of :data:`.plan.ON`.
    batch_size : int
        Sentences per gradient or update.
    start, stop : int
        Range of sentences, as indices into the sentences of the audit.
    config : dict
        ``run``: the flat run config; ``plan``: the :class:`AuditPlan`; ``folder``: where to write the result.
    """
    plan, flat = config["plan"], config["run"]
    target = trained_victim(tuple(sorted(flat.items())), plan.sentences)
    attacked = target.sentences[start:stop]
    results = audit(
        target.updated if on == "update" else target.victim,
        [sentence.words for sentence in attacked],
        [sentence.label for sentence in attacked],
        views=[
            (sharing, one)
            for sharing in _methods(plan, attack)
            for one in _attackers(plan, attack, sharing, target, flat)
        ],
        attack=_attack(plan, attack, target, derive_seed(flat["seed"], "audit", attack, batch_size, start)),
        batch_size=batch_size,
        ignored=target.special_tokens,
    )
    parts = [
        {
            "method": result.method,
            "attacker": result.attacker,
            "attack": attack,
            "on": on,
            "batch_size": batch_size,
            "start": start,
            "sentences": result.sentences,
            "seconds": result.seconds,
            "distances": result.distances,
            "recoveries": [[one.target, one.recovered] for one in result.recoveries],
            "private": sorted({w for one in result.recoveries for w in one.target if plan.subject.is_private(w)}),
        }
        for result in results
    ]
    path = Path(config["folder"]) / f"{attack}-{on}-{batch_size}-{start:05d}.json"
    # The main process reads this folder at any time: write_whole replaces the file atomically.
    write_whole(path, (json.dumps(parts) + "\n").encode())


def finished(folder: Path, recipe: str) -> dict[str, Any]:
    """Combine the results of all finished jobs in a folder.

    Parameters
    ----------
    folder : Path
        Holds the JSON files that :func:`run_job` wrote.
    recipe : str
        Name of the audited recipe.

    Returns
    -------
    dict
        ``recipe``; ``rows``, one for each method, attacker, attack, what it is ``on`` and batch size; and
        ``recovered``, the first reconstructed sentences. In a row, ``sentences`` is the number of sentences attacked so
        far, ``seconds`` the mean time per sentence, ``ptlr`` is None if no sentence has a private token, and
        ``distance`` is the mean final distance of a search, relative to the squared norm of the gradient, or None
        without a search.
    """
    parts: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        parts += json.loads(path.read_text(encoding="utf-8"))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in parts:
        key = tuple(part[name] for name in KEY)
        groups.setdefault(key, []).append(part)
    methods = list(dict.fromkeys(part["method"] for part in parts))
    ordered = sorted(groups.items(), key=lambda item: _order(methods, *item[0]))
    return {
        "recipe": recipe,
        "rows": [_row(key, of_group) for key, of_group in ordered],
        "recovered": [one for key, of_group in ordered for one in _recovered(key, of_group)],
    }


def _methods(plan: AuditPlan, attack: str) -> list[Sharing]:
    """What the methods share that the attack can read."""
    sharings = [plan.subject.sharings[name] for name in plan.methods]
    return [sharing for sharing in sharings if sharing.first_layer or attack not in FIRST_LAYER]


def _attackers(
    plan: AuditPlan, attack: str, sharing: Sharing, target: TrainedVictim, flat: dict[str, Any]
) -> list[Attacker]:
    alone = {"rows": ANYBODY, "frequency": GUESSER}
    if attack in alone:
        return [Attacker(alone[attack], target.victim.body, target.victim.table)]
    # With vectors that tell nothing, "sparse-prior" is a guess.
    names = [name for name in plan.attackers if (attack, name) != ("sparse-prior", "foreign")]
    seed = derive_seed(flat["seed"], "audit", "attackers")
    return [attacker(name, sharing, target.victim, target.before_training, seed) for name in names]


def _attack(plan: AuditPlan, name: str, target: TrainedVictim, seed: int) -> Attack:
    if name in ("sparse-prior", "frequency"):
        return {"sparse-prior": sparse_prior, "frequency": frequency}[name](target.frequencies())
    if name not in SEARCHES:
        return {"rows": row_reading, "sparse": sparse, "subspace": subspace}[name]
    weight = TAG_WEIGHT if name == "tag" else 0.0
    # One restart after another: the graphs of all restarts at once take too much memory.
    settings = Inversion(weight, steps=plan.steps, restarts=plan.restarts, seed=seed, vectorised=False)
    return gradient_matching(settings, target.before_training.table)


def _order(
    methods: Sequence[str], method: str, attacker: str, attack: str, on: str, batch_size: int
) -> tuple[Any, ...]:
    return (
        ATTACKS.index(attack),
        ON.index(on),
        methods.index(method),
        ("known", "public", "foreign", ANYBODY, GUESSER).index(attacker),
        batch_size,
    )


def _row(key: tuple[Any, ...], parts: Sequence[dict[str, Any]]) -> Row:
    private = {word for part in parts for word in part["private"]}
    recoveries = [Recovery(tuple(target), tuple(text)) for part in parts for target, text in part["recoveries"]]
    scores = score(recoveries, private.__contains__)
    sentences = sum(part["sentences"] for part in parts)
    distances = [distance for part in parts for distance in part["distances"]]
    return {
        **dict(zip(KEY, key, strict=True)),
        "precision": scores.precision,
        "recall": scores.recall,
        "f1": scores.f1,
        "ptlr": None if math.isnan(scores.ptlr) else scores.ptlr,
        "seconds": sum(part["seconds"] for part in parts) / sentences,
        "sentences": sentences,
        "distance": fmean(distances) if distances else None,
    }


def _recovered(key: tuple[Any, ...], parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    first = [pair for part in sorted(parts, key=lambda part: part["start"]) for pair in part["recoveries"]][:_SHOWN]
    facts = dict(zip(KEY, key, strict=True))
    return [{**facts, "target": " ".join(target), "recovered": " ".join(text)} for target, text in first]


def audit_recipe(
    recipe: Path,
    plan: AuditPlan,
    *,
    jobs: int = 0,
    overrides: Mapping[str, Any] | None = None,
    output_dir: str = "runs",
    json_path: Path | None = None,
) -> dict[str, Any]:
    """Attack one node of a run and print what the attacks reconstruct.

    The results so far are saved after every job, in ``OUTPUT_DIR/audit-<recipe>-<time>/audit.json``.

    Parameters
    ----------
    recipe : Path
        Run config of a task that can be audited (:func:`.victim.recipe_subject`).
    plan : AuditPlan
        What to attack, and how, with the subject of the recipe.
    jobs : int
        Maximum number of parallel processes; 0: one per CPU core.
    overrides : mapping, optional
        Keys of the run config that override the recipe. ``name`` names the folder of the audit.
    output_dir : str
        Where the folder of the audit is created.
    json_path : Path, optional
        Also write the final results to this file.

    Returns
    -------
    dict
        The content of ``audit.json``; see :func:`.jobs.finished`.

    Raises
    ------
    ValueError
        Before anything runs, if the config is invalid, or the node has too few sentences.
    """
    keys, named = read_recipe(recipe, overrides), str((overrides or {}).get("name", ""))
    name = timed_name(f"audit-{recipe_name(recipe)}")
    # The methods of the recipe do not matter: the audited ones differ only in which gradients the node shares.
    config = parse(resolve(keys | {"name": name}, output_dir))
    victim_data(config, plan.sentences)
    with new_folder(config.run.output_dir, named, name) as folder, owned(folder):
        (folder / "cells").mkdir()
        return _carry_out(config, plan, folder, recipe_name(recipe), jobs, json_path)


def _carry_out(
    config: Config, plan: AuditPlan, folder: Path, recipe: str, jobs: int, json_path: Path | None
) -> dict[str, Any]:
    if json_path:
        json_path.parent.mkdir(parents=True, exist_ok=True)
    shared = {"run": config.flat(), "plan": plan, "folder": str(folder / "cells")}
    progress = _Progress(folder, recipe, plan)
    print(f"{plan.sentences} sentences; intermediate results: {folder / 'audit.json'}", flush=True)
    cells = [job | {"config": shared} for job in plan.jobs()]
    run_matrix(cells, run_job, jobs=jobs, watch=Lines(len(cells), progress.show))
    results = progress.save()
    if json_path:
        write_whole(json_path, _json(results).encode())
    print(f"\n{audit_text(results, plan.subject.paper)}\n\naudit: {folder / 'audit.json'}")
    return results


class _Progress:
    """Prints each completed row once, and saves the results so far."""

    def __init__(self, folder: Path, recipe: str, plan: AuditPlan) -> None:
        self.folder, self.recipe, self.plan = folder, recipe, plan
        self.printed: set[tuple[Any, ...]] = set()

    def show(self, line: str) -> None:
        print(line, flush=True)
        for row in self.save()["rows"]:
            key = tuple(row[name] for name in KEY)
            if row["sentences"] == self.plan.sentences and key not in self.printed:
                self.printed.add(key)
                print(f"  {row_line(row)}", flush=True)

    def save(self) -> dict[str, Any]:
        results = finished(self.folder / "cells", self.recipe)
        write_whole(self.folder / "audit.json", _json(results).encode())
        return results


def _json(results: Mapping[str, Any]) -> str:
    return json.dumps(results, indent=2, ensure_ascii=False) + "\n"
