"""The options of an audit: methods, attackers, attacks, what is attacked, batch sizes and the budget of the search."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedapps.tasks.privacy.audit import ATTACKERS
from fedapps.tasks.privacy.sharing import AuditSubject

ATTACKS = ("subspace", "sparse", "sparse-prior", "dlg", "tag", "rows", "frequency")
#: The attacks that read the gradient of the first layer.
FIRST_LAYER = ("subspace", "sparse", "sparse-prior")
#: What is attacked: one gradient of the batch, or the change of the weights after local training on it.
ON = ("gradient", "update")
#: The attacks that search; they match one gradient and cannot read an update.
SEARCHES = ("dlg", "tag")
#: The only attacker of the attack "rows", which needs no token table: anybody who sees the shared rows.
ANYBODY = "anybody"
#: The only attacker of "frequency", who sees nothing that is shared and guesses. Attacks are compared with it.
GUESSER = "guesser"
#: Sentences per job of a search (rounded to whole batches, at least one). Jobs run in parallel and save their results
#: separately.
_JOB_SENTENCES = 4


@dataclass(frozen=True)
class AuditPlan:
    """Every combination of a method, an attacker, an attack, what is attacked and a batch size.

    The attacks "dlg" and "tag" are run only on gradients.

    Parameters
    ----------
    subject : AuditSubject
        What the audited task offers.
    methods : tuple of str
        Names in ``subject.sharings``.
    attackers : tuple of str
        Names in :data:`fedapps.tasks.privacy.audit.ATTACKERS`.
    attacks : tuple of str
        Names in :data:`ATTACKS`, but not in ``subject.refused``.
    on : tuple of str
        Names in :data:`ON`.
    batch_sizes : tuple of int
        Sentences per gradient or update, each from 1 to ``sentences``.
    sentences : int
        Number of sentences to attack, at least 1.
    steps, restarts : int
        Limits of the search of "dlg" and "tag", each at least 1; see
        :class:`fedapps.tasks.privacy.inversion.Inversion`.

    Raises
    ------
    ValueError
        If a name is unknown or given twice, or a number is out of range. The message lists all errors.
    """

    subject: AuditSubject
    methods: tuple[str, ...]
    attackers: tuple[str, ...]
    attacks: tuple[str, ...]
    on: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    sentences: int
    steps: int
    restarts: int

    def __post_init__(self) -> None:
        sharings = self.subject.sharings
        wrong = [
            *_named("--methods", self.methods, tuple(sharings)),
            *_named("--attackers", self.attackers, tuple(ATTACKERS)),
            *_named("--attack", self.attacks, ATTACKS),
            *_named("--on", self.on, ON),
        ]
        wrong += [f"--attack {name}: {why}" for name, why in self.subject.refused.items() if name in self.attacks]
        least = {"--sentences": self.sentences, "--steps": self.steps, "--restarts": self.restarts}
        wrong += [f"{key} {value}: must be at least 1" for key, value in least.items() if value < 1]
        wrong += [
            f"--batch-sizes {size}: must be between 1 and {self.sentences}, the number of sentences (--sentences)"
            for size in self.batch_sizes
            if not 1 <= size <= max(self.sentences, 1)
        ]
        if not self.batch_sizes or len(set(self.batch_sizes)) < len(self.batch_sizes):
            wrong.append(f"--batch-sizes {','.join(map(str, self.batch_sizes))!r}: name at least one, and none twice")
        if self.on == ("update",) and self.attacks and set(self.attacks) <= set(SEARCHES):
            wrong.append(
                "--on update: dlg and tag match gradients only; add --attack subspace, sparse or rows, or --on gradient"
            )
        without = [name for name in self.methods if name in sharings and not sharings[name].first_layer]
        if without and self.attacks and set(self.attacks) <= set(FIRST_LAYER):
            wrong.append(
                f"--methods {', '.join(without)}: the first layer stays on the node, but --attack "
                f"{','.join(self.attacks)} reads its gradient; add --attack dlg, tag or rows"
            )
        if wrong:
            raise ValueError("this audit cannot be run:\n  " + "\n  ".join(wrong))

    def jobs(self) -> list[dict[str, Any]]:
        """Split the audit into jobs.

        Each has one attack, what it is ``on``, one batch size, and the sentences ``start`` to ``stop`` (exclusive).
        """
        jobs = []
        for attack, on, size in product(self.attacks, self.on, self.batch_sizes):
            if attack in SEARCHES and on == "update":
                continue
            step = size * max(1, _JOB_SENTENCES // size) if attack in SEARCHES else self.sentences
            for start in range(0, self.sentences, step):
                stop = min(start + step, self.sentences)
                jobs.append({"attack": attack, "on": on, "batch_size": size, "start": start, "stop": stop})
        return jobs


def _named(key: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    wrong = [f"{key} {name}: unknown; must be among {', '.join(known)}" for name in names if name not in known]
    if not names or len(set(names)) < len(names):
        wrong.append(f"{key} {','.join(names)!r}: name at least one of {', '.join(known)}, and none twice")
    return wrong
