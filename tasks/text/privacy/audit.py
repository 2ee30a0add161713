"""An audit: one attack by several attackers on what several methods share of many sentences.

What an attack costs is the search for vectors, and that depends on the shared gradients and not on the method, nor on
the table that the vectors are then read with. So methods that share the same gradients, and attackers who see the same
body, are served by one search; their results differ by nothing but the reading.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import process_time

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


#: One text for each sentence of the batch, or one for all when they cannot be told apart, in the words of a table.
Reader = Callable[[TokenTable], list[list[str]]]


@dataclass(frozen=True)
class Attack:
    """``run(observation, body)`` looks at what is shared once, at all its cost, and gives a reader of what it found.

    ``reads_rows`` says whether it looks at the rows of the embedding table, beside the gradients of the body.
    """

    name: str
    run: Callable[[Observation, nn.Module], Reader]
    reads_rows: bool = False


@dataclass(frozen=True)
class AuditResult:
    """What came of one method and one attacker; ``seconds`` are the attacker's on a CPU for all ``sentences``."""

    method: str
    attacker: str
    attack: str
    batch_size: int
    sentences: int
    seconds: float
    recoveries: tuple[Recovery, ...]

    @property
    def scores(self) -> Scores:
        """The measures over all recoveries."""
        return score(self.recoveries)


def gradient_matching(settings: Inversion, start: TokenTable, progress: Progress | None = None) -> Attack:
    """DLG or, with an L1 distance, TAG, and the nearest words of the attacker's table.

    The search begins at the scale of ``start``, whoever attacks: in general the public table's.
    """

    def run(observation: Observation, body: nn.Module) -> Reader:
        found = invert(observation, body, start, settings, progress)
        return lambda table: found.read(observation.lengths, table)

    return Attack("tag" if settings.l1_weight else "dlg", run)


#: The exact leak of shared embedding rows. The attacker needs no table but the names of the rows.
row_reading = Attack("rows", lambda observation, body: lambda table: leaked_tokens(observation, table), reads_rows=True)


def audit(
    victim: Victim,
    sentences: Sequence[Sequence[str]],
    labels: Sequence[int],
    *,
    views: Sequence[tuple[Sharing, Attacker]],
    attack: Attack,
    batch_size: int,
    ignored: Collection[str] = (),
) -> list[AuditResult]:
    """Attack the ``sentences`` with class indices ``labels``, ``batch_size`` ≥ 1 at a time, the last batch as it comes.

    One result for each of the ``views``: a method and who looks at what it shares. The words ``ignored`` count neither
    as written nor as recovered. Raises ``ValueError`` when an attacker's embeddings have another width than the
    victim's, there are not as many labels as sentences, or there is nothing to attack.
    """
    for _, attacker in views:
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
    recoveries: list[list[Recovery]] = [[] for _ in views]
    seconds = [0.0] * len(views)
    for start in range(0, len(sentences), batch_size):
        batch = sentences[start : start + batch_size]
        written = [[word for word in sentence if word not in ignored] for sentence in batch]
        searches: dict[tuple[object, ...], tuple[Reader, float]] = {}
        for place, (sharing, attacker) in enumerate(views):
            key = _what_is_searched(attack, sharing, attacker, victim)
            if key not in searches:
                observation = victim.share(batch, labels[start : start + batch_size], sharing)
                began = process_time()
                searches[key] = attack.run(observation, attacker.body), process_time() - began
            read, spent = searches[key]
            began = process_time()
            texts = read(attacker.table)
            seconds[place] += spent + process_time() - began
            recoveries[place] += pair(written, [[word for word in text if word not in ignored] for text in texts])
    return [
        AuditResult(sharing.method, attacker.name, attack.name, batch_size, len(sentences), spent, tuple(found))
        for (sharing, attacker), spent, found in zip(views, seconds, recoveries, strict=True)
    ]


def _what_is_searched(attack: Attack, sharing: Sharing, attacker: Attacker, victim: Victim) -> tuple[object, ...]:
    """Equal where one search serves."""
    rows = tuple(map(sharing.row, victim.table.words)) if attack.reads_rows else ()
    return (id(attacker.body), tuple(sharing.names(victim.body)), rows)
