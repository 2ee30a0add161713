"""An audit: one attack by one attacker on what one method shares of many sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from torch import nn

from .inversion import Inversion, Progress, invert
from .measures import Recovery, Scores, pair, score
from .rows import leaked_tokens
from .sharing import Observation, Sharing, Victim
from .tokens import TokenTable


@dataclass(frozen=True, eq=False)
class Attacker:
    """Somebody who sees what is shared, and what he believes in beside it.

    ``table`` is the victim's own, what is left of it (:meth:`.TokenTable.without`), the public one that the victim
    began with, or a foreign one of the same width. ``body`` is the model above the table, as in :class:`.Victim`, with
    the shared weights as they are and, for parameters not shared, his own.
    """

    name: str
    body: nn.Module
    table: TokenTable


@dataclass(frozen=True)
class Attack:
    """``run`` gives one text for each sentence of the batch, or one for all when it cannot tell them apart."""

    name: str
    run: Callable[[Observation, Attacker], list[list[str]]]


@dataclass(frozen=True)
class AuditResult:
    """What came of an audit; ``seconds`` is the attacker's time for one sentence."""

    method: str
    attacker: str
    attack: str
    batch_size: int
    scores: Scores
    seconds: float
    recoveries: tuple[Recovery, ...]


def gradient_matching(settings: Inversion, progress: Progress | None = None) -> Attack:
    """DLG or, with an L1 distance, TAG, and the nearest words of the attacker's table."""

    def run(observation: Observation, attacker: Attacker) -> list[list[str]]:
        found = invert(observation, attacker.body, attacker.table, settings, progress)
        return found.read(observation.lengths, attacker.table)

    return Attack("tag" if settings.l1_weight else "dlg", run)


#: The exact leak of shared embedding rows. The attacker needs no table but the names of the rows.
row_reading = Attack("rows", lambda observation, attacker: leaked_tokens(observation, attacker.table))


def audit(
    victim: Victim,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[int],
    *,
    sharing: Sharing,
    attacker: Attacker,
    attack: Attack,
    batch_size: int,
) -> AuditResult:
    """Attack the ``sentences`` with class indices ``labels``, ``batch_size`` ≥ 1 at a time, the last batch as it comes.

    Raises ``ValueError`` when the attacker's embeddings have another width than the victim's, there are not as many
    labels as sentences, or there is nothing to attack.
    """
    if attacker.table.width != victim.table.width:
        raise ValueError(
            f"the table of attacker {attacker.name!r} has width {attacker.table.width}: "
            f"must be {victim.table.width}, as the victim's"
        )
    if len(sentences) != len(labels) or not sentences or batch_size < 1:
        raise ValueError(
            f"{len(sentences)} sentences, {len(labels)} labels, batch size {batch_size}: "
            "must be as many labels as sentences, and at least 1 of each"
        )
    recoveries: list[Recovery] = []
    seconds = 0.0
    for start in range(0, len(sentences), batch_size):
        batch = sentences[start : start + batch_size]
        observation = victim.share(batch, labels[start : start + batch_size], sharing)
        began = perf_counter()
        texts = attack.run(observation, attacker)
        seconds += perf_counter() - began
        recoveries += pair(batch, texts)
    return AuditResult(
        method=sharing.method,
        attacker=attacker.name,
        attack=attack.name,
        batch_size=batch_size,
        scores=score(recoveries),
        seconds=seconds / len(sentences),
        recoveries=tuple(recoveries),
    )
