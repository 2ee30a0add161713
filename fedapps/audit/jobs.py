"""One job of an audit, which runs in a separate process, and the table rows computed from all finished jobs."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedapps.base.atomic import write_whole
from fedapps.base.seeding import derive_seed
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
from .victim import TrainedVictim, trained_victim

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
    chosen = target.sentences[start:stop]
    results = audit(
        target.updated if on == "update" else target.victim,
        [sentence.words for sentence in chosen],
        [sentence.label for sentence in chosen],
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
