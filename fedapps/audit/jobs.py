"""One job of an audit, which runs in a separate process, and the table rows computed from all finished jobs."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from clients.files import write_whole
from sim.seeding import derive_seed
from tasks.text.privacy.attackers import attacker
from tasks.text.privacy.audit import Attack, Attacker, audit, gradient_matching, row_reading
from tasks.text.privacy.inversion import Inversion
from tasks.text.privacy.measures import Recovery, score
from tasks.text.privacy.sharing import METHODS, Sharing

from .plan import ANYBODY, AuditPlan
from .victim import TrainedVictim, trained_victim

#: Weight of the L1 distance in the attack "tag".
TAG_WEIGHT = 0.1
_SHOWN = 3

Row = dict[str, Any]


def run_job(attack: str, batch_size: int, start: int, stop: int, config: dict[str, Any]) -> None:
    """Attack the sentences ``start`` to ``stop`` (exclusive) and write the reconstructed words as JSON.

    Methods and attackers that share the same gradients share one search (:mod:`tasks.text.privacy.audit`); each of them
    is charged with the whole time of that search.

    Parameters
    ----------
    attack : str
        One of :data:`.plan.ATTACKS`.
    batch_size : int
        Sentences per gradient.
    start, stop : int
        Range of sentences, as indices into the sentences of the audit.
    config : dict
        ``run``: the flat run config; ``plan``: the :class:`AuditPlan`; ``folder``: where to write the result.
    """
    plan, flat = config["plan"], config["run"]
    target = trained_victim(tuple(sorted(flat.items())), plan.sentences)
    chosen = target.sentences[start:stop]
    results = audit(
        target.victim,
        [sentence.words for sentence in chosen],
        [sentence.label for sentence in chosen],
        views=[(sharing, one) for sharing in _methods(plan) for one in _attackers(plan, attack, sharing, target, flat)],
        attack=_attack(plan, attack, target, derive_seed(flat["seed"], "audit", attack, batch_size, start)),
        batch_size=batch_size,
        ignored=target.special_tokens,
    )
    parts = [
        {
            "method": result.method,
            "attacker": result.attacker,
            "attack": attack,
            "batch_size": batch_size,
            "start": start,
            "sentences": result.sentences,
            "seconds": result.seconds,
            "recoveries": [[one.target, one.recovered] for one in result.recoveries],
        }
        for result in results
    ]
    path = Path(config["folder"]) / f"{attack}-{batch_size}-{start:05d}.json"
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
        ``recipe``; ``rows``, one for each method, attacker, attack and batch size; and ``recovered``, the first
        reconstructed sentences. In a row, ``sentences`` is the number of sentences attacked so far, ``seconds`` the
        mean time per sentence, and ``ptlr`` is None if no sentence has a digit token.
    """
    parts: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        parts += json.loads(path.read_text(encoding="utf-8"))
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for part in parts:
        key = (part["method"], part["attacker"], part["attack"], part["batch_size"])
        groups.setdefault(key, []).append(part)
    ordered = sorted(groups.items(), key=lambda item: _order(*item[0]))
    return {
        "recipe": recipe,
        "rows": [_row(key, found) for key, found in ordered],
        "recovered": [one for key, found in ordered for one in _recovered(key, found)],
    }


def _methods(plan: AuditPlan) -> list[Sharing]:
    return [METHODS[name] for name in plan.methods]


def _attackers(
    plan: AuditPlan, attack: str, sharing: Sharing, target: TrainedVictim, flat: dict[str, Any]
) -> list[Attacker]:
    if attack == "rows":
        return [Attacker(ANYBODY, target.victim.body, target.victim.table)]
    seed = derive_seed(flat["seed"], "audit", "attackers")
    return [attacker(name, sharing, target.victim, target.before_training, seed) for name in plan.attackers]


def _attack(plan: AuditPlan, name: str, target: TrainedVictim, seed: int) -> Attack:
    if name == "rows":
        return row_reading
    weight = TAG_WEIGHT if name == "tag" else 0.0
    # vmap does not support the packed sequences of an LSTM.
    settings = Inversion(weight, steps=plan.steps, restarts=plan.restarts, seed=seed, vectorised=False)
    return gradient_matching(settings, target.before_training.table)


def _order(method: str, attacker: str, attack: str, batch_size: int) -> tuple[Any, ...]:
    return (
        attack == "rows",
        attack,
        list(METHODS).index(method),
        ("known", "public", "foreign", ANYBODY).index(attacker),
        batch_size,
    )


def _row(key: tuple[Any, ...], parts: Sequence[dict[str, Any]]) -> Row:
    scores = score([Recovery(tuple(target), tuple(text)) for part in parts for target, text in part["recoveries"]])
    sentences = sum(part["sentences"] for part in parts)
    return {
        **dict(zip(("method", "attacker", "attack", "batch_size"), key, strict=True)),
        "precision": scores.precision,
        "recall": scores.recall,
        "f1": scores.f1,
        "ptlr": None if math.isnan(scores.ptlr) else scores.ptlr,
        "seconds": sum(part["seconds"] for part in parts) / sentences,
        "sentences": sentences,
    }


def _recovered(key: tuple[Any, ...], parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    method, attacker, attack, batch_size = key
    first = [pair for part in sorted(parts, key=lambda part: part["start"]) for pair in part["recoveries"]][:_SHOWN]
    facts = {"method": method, "attacker": attacker, "attack": attack, "batch_size": batch_size}
    return [{**facts, "target": " ".join(target), "recovered": " ".join(text)} for target, text in first]
