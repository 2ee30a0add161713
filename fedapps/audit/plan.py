"""What is audited: methods, attackers, attacks, batch sizes, and at what cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.text.privacy.attackers import ATTACKERS
from tasks.text.privacy.sharing import SHARINGS

ATTACKS = ("dlg", "tag", "rows")
#: The attacker of the attack "rows", which takes no table: everybody who sees the shared rows and knows their words.
ANYBODY = "anybody"
#: Sentences of a cell, or one batch where that is more: cells are what runs in parallel and what is saved.
_CELL = 4


@dataclass(frozen=True)
class AuditPlan:
    """``sentences`` are attacked ``batch_sizes`` at a time, by every attack on every method for every attacker.

    ``steps`` and ``restarts`` are those of :class:`~tasks.text.privacy.inversion.Inversion`. Raises ``ValueError``, for
    all errors at once, when something is unknown, given twice, or out of range.
    """

    methods: tuple[str, ...]
    attackers: tuple[str, ...]
    attacks: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    sentences: int
    steps: int
    restarts: int

    def __post_init__(self) -> None:
        wrong = [
            *_named("--methods", self.methods, tuple(SHARINGS)),
            *_named("--attackers", self.attackers, tuple(ATTACKERS)),
            *_named("--attack", self.attacks, ATTACKS),
        ]
        least = {"--sentences": self.sentences, "--steps": self.steps, "--restarts": self.restarts}
        wrong += [f"{key} {value}: must be at least 1" for key, value in least.items() if value < 1]
        wrong += [
            f"--batch-sizes {size}: must be between 1 and {self.sentences}, the number of sentences (--sentences)"
            for size in self.batch_sizes
            if not 1 <= size <= max(self.sentences, 1)
        ]
        if not self.batch_sizes or len(set(self.batch_sizes)) < len(self.batch_sizes):
            wrong.append(f"--batch-sizes {','.join(map(str, self.batch_sizes))!r}: name at least one, and none twice")
        if wrong:
            raise ValueError("this audit cannot be run:\n  " + "\n  ".join(wrong))

    @classmethod
    def read(
        cls,
        *,
        methods: str,
        attackers: str,
        attacks: str,
        batch_sizes: str,
        sentences: int,
        steps: int,
        restarts: int,
    ) -> "AuditPlan":
        """A plan whose lists are written with commas. Raises ``ValueError`` also for a size that is no number."""
        sizes = _listed(batch_sizes)
        if strange := [size for size in sizes if not size.lstrip("-").isdecimal()]:
            raise ValueError(f"--batch-sizes {', '.join(strange)}: must be whole numbers, separated by commas")
        whole = tuple(map(int, sizes))
        return cls(_listed(methods), _listed(attackers), _listed(attacks), whole, sentences, steps, restarts)

    def cells(self) -> list[dict[str, Any]]:
        """What runs at a time: one attack with one batch size on the sentences from ``start`` to before ``stop``."""
        found = []
        for attack in self.attacks:
            for size in self.batch_sizes:
                step = self.sentences if attack == "rows" else size * max(1, _CELL // size)
                for start in range(0, self.sentences, step):
                    stop = min(start + step, self.sentences)
                    found.append({"attack": attack, "batch_size": size, "start": start, "stop": stop})
        return found


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _named(key: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    wrong = [f"{key} {name}: unknown; must be among {', '.join(known)}" for name in given if name not in known]
    if not given or len(set(given)) < len(given):
        wrong.append(f"{key} {','.join(given)!r}: name at least one of {', '.join(known)}, and none twice")
    return wrong
