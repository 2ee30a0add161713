"""An audit: one attack by several attackers on what several methods share of many sentences.

The cost of most attacks is the search for vectors, which depends only on the shared gradients, not on the method or the
table that maps the vectors to words. Methods that share the same gradients, and attackers with the same body, therefore
use one search; only the mapping to words differs. All attackers see the same message of a method.

Gradients give an attacker vectors, not words; a table maps vectors to words. In the paper the attacker of FedAvg has
the true table, that of FedRecon the true table without the rows of private words, and that of FedVocab a table
"completely different from the known mapping" (Zhang et al., Appendix A.3; GPT-2's in the released code). The last one
is the weakest. Initial vectors that all nodes share, such as GloVe's, are public, and training moves them little, so an
attacker with the public table may still read the text. Every method is therefore attacked by all three. Under FedAvg
and FedRecon the last two attackers ignore the table that they see, which shows what the gradients alone reveal. If
nodes start with secret vectors (FedVocab's "Different init"), no attacker has the public table.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from time import process_time
from types import MappingProxyType

import torch
from torch import nn

from . import leaks
from .inversion import Inversion, Progress, invert
from .sharing import Observation, Sharing, Victim
from .tokens import Recovery, TokenTable, pair


@dataclass(frozen=True, eq=False)
class Attacker:
    """An attacker, who sees what is shared.

    Attributes
    ----------
    name : str
        The attacker's name.
    body : Module
        The model above the table, as in :class:`.Victim`, with the shared weights and, for the others, the attacker's.
    table : TokenTable
        The table that the attacker assumes: the victim's, the rest of it (:meth:`.TokenTable.without`), the public one
        with which the victim started, or a foreign one of the same width.
    """

    name: str
    body: nn.Module
    table: TokenTable


#: Returns, in the words of a table, one text per sentence of the batch, or one text for all if they are inseparable.
Reader = Callable[[TokenTable], list[list[str]]]


@dataclass(frozen=True)
class Found:
    """What the search of an attack found: a reader, and the final relative distance of a gradient matching."""

    read: Reader
    distance: float | None = None


@dataclass(frozen=True)
class Attack:
    """An attack.

    Attributes
    ----------
    name : str
        The attack's name.
    run : callable
        ``run(observation, body)`` performs the costly search once.
    reads_rows : bool
        Whether the attack uses the rows of the embedding table, besides the gradients of the body.
    """

    name: str
    run: Callable[[Observation, nn.Module], Found]
    reads_rows: bool = False


@dataclass(frozen=True)
class AuditResult:
    """The result for one method and one attacker.

    ``seconds`` is the attacker's CPU time for all ``sentences``. ``distances`` has the final relative distance of each
    batch (:class:`.Inverted`) and is empty for attacks that match no gradients.
    """

    method: str
    attacker: str
    attack: str
    batch_size: int
    sentences: int
    seconds: float
    recoveries: tuple[Recovery, ...]
    distances: tuple[float, ...]


def gradient_matching(settings: Inversion, start: TokenTable, progress: Progress | None = None) -> Attack:
    """Return DLG or, with an L1 distance, TAG, with the nearest words of the attacker's table.

    Every attacker's search starts at the scale of ``start``, usually the public table.
    """

    def run(observation: Observation, body: nn.Module) -> Found:
        result = invert(observation, body, start, settings, progress)
        return Found(lambda table: result.read(observation.lengths, table), result.distance)

    return Attack("tag" if settings.l1_weight else "dlg", run)


def _subspace(observation: Observation, body: nn.Module) -> Found:
    gradient = torch.cat(list(leaks.first_gradients(observation).values()))
    basis = leaks.span_of_inputs(gradient, int(observation.lengths.sum()), leaks.first_noise(observation))
    return Found(lambda table: [leaks.words_in_span(basis, body, table, observation.lengths)])


def _rows(observation: Observation, body: nn.Module) -> Found:
    return Found(lambda table: leaks.leaked_tokens(observation, table))


def _sparse(observation: Observation, body: nn.Module) -> Found:
    return Found(lambda table: [leaks.words_by_evidence(observation, body, table)])


def sparse_prior(counts: Mapping[str, int]) -> Attack:
    """Return :data:`sparse` by an attacker who knows how often words occur in public text."""

    def run(observation: Observation, body: nn.Module) -> Found:
        def read(table: TokenTable) -> list[list[str]]:
            return [leaks.words_by_evidence(observation, body, table, leaks.word_frequencies(counts, table))]

        return Found(read)

    return Attack("sparse-prior", run, reads_rows=True)


def frequency(counts: Mapping[str, int]) -> Attack:
    """Return the guess of the most frequent words of public text, which uses nothing that is shared."""

    def run(observation: Observation, body: nn.Module) -> Found:
        return Found(lambda table: [leaks.most_frequent(observation, table, leaks.word_frequencies(counts, table))])

    return Attack("frequency", run)


#: The words in the row space of the first layer's gradient, as one text for the whole batch.
subspace = Attack("subspace", _subspace)
#: The few words that explain the covariance of an inexact gradient's rows, as one text for the whole batch.
sparse = Attack("sparse", _sparse, reads_rows=True)
#: The exact leak of shared embedding rows. The attacker needs only the names of the rows.
row_reading = Attack("rows", _rows, reads_rows=True)


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
    """Attack sentences in batches.

    Parameters
    ----------
    victim : Victim
        The victim.
    sentences : sequence of sequences of str
        The sentences.
    labels : sequence of int
        What the loss needs of each sentence besides its words (:meth:`.Victim.loss`).
    views : sequence of (Sharing, Attacker)
        The methods, each with an attacker.
    attack : Attack
        The attack.
    batch_size : int
        Sentences per batch, >= 1; the last batch may be smaller.
    ignored : collection of str
        Words that count neither as written nor as recovered.

    Returns
    -------
    list of AuditResult
        One result for each view.

    Raises
    ------
    ValueError
        An attacker's embeddings have another width than the victim's, the numbers of labels and sentences differ, or
        there are no sentences.
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
    distances: list[list[float]] = [[] for _ in views]
    for start in range(0, len(sentences), batch_size):
        batch = sentences[start : start + batch_size]
        written = [[word for word in sentence if word not in ignored] for sentence in batch]
        observations: dict[tuple[object, ...], Observation] = {}
        searches: dict[tuple[object, ...], tuple[Found, float]] = {}
        for view, (sharing, attacker) in enumerate(views):
            shared = _what_is_shared(attack, sharing, victim)
            key = (id(attacker.body), *shared)
            if shared not in observations:
                observations[shared] = victim.share(batch, labels[start : start + batch_size], sharing)
            if key not in searches:
                began = process_time()
                searches[key] = attack.run(observations[shared], attacker.body), process_time() - began
            result, spent = searches[key]
            began = process_time()
            texts = result.read(attacker.table)
            seconds[view] += spent + process_time() - began
            distances[view] += [] if result.distance is None else [result.distance]
            recoveries[view] += pair(written, [[word for word in text if word not in ignored] for text in texts])
    return [
        AuditResult(
            sharing.method, attacker.name, attack.name, batch_size, len(sentences), spent, tuple(words), tuple(final)
        )
        for (sharing, attacker), spent, words, final in zip(views, seconds, recoveries, distances, strict=True)
    ]


def _what_is_shared(attack: Attack, sharing: Sharing, victim: Victim) -> tuple[object, ...]:
    """A key that is equal for methods that share the same, as far as the attack uses it."""
    needed = attack.reads_rows or victim.rows_affect_body
    rows = tuple(map(sharing.row, victim.table.words)) if needed else ()
    return (tuple(sharing.names(victim.body)), rows)


#: The attackers, and the table that each has.
ATTACKERS = MappingProxyType(
    {
        "known": "the victim's table; under FedRecon with random rows for the private words",
        "public": "the victim's initial table, before its training",
        "foreign": "another table: the public one, with its vectors assigned to other words",
    }
)


def attacker(name: str, sharing: Sharing, victim: Victim, start: Victim, seed: int) -> Attacker:
    """Return an attacker on what a method shares.

    The attacker has the shared parameters of the body. For the others, "known" has the victim's values and the rest
    those of ``start``.

    Parameters
    ----------
    name : str
        A name in :data:`ATTACKERS`.
    sharing : Sharing
        What the method shares.
    victim : Victim
        The victim.
    start : Victim
        The victim before its training.
    seed : int
        Seed of random rows and permutations.

    Raises
    ------
    ValueError
        The name is unknown.
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "known":
        private = [word for word in victim.table.words if not sharing.row(word)]
        # FedVocab shares no row at all: there, this attacker has obtained the table by other means.
        made_up = 0 < len(private) < len(victim.table.words)
        hidden = set(private) if made_up else set()
        return Attacker(name, victim.body, victim.table.without(hidden.__contains__, generator))
    if name == "public":
        return Attacker(name, _seen(sharing, victim, start), start.table)
    if name == "foreign":
        return Attacker(name, _seen(sharing, victim, start), permuted(start.table, generator))
    raise ValueError(f"attacker {name!r}: must be one of {', '.join(ATTACKERS)}")


def permuted(table: TokenTable, generator: torch.Generator) -> TokenTable:
    """Return the table with randomly permuted vectors; the padding keeps its vector."""
    order = torch.randperm(len(table.words), generator=generator)
    if table.padding is not None:
        row = table.index[table.padding]
        order[order == row] = order[row].clone()
        order[row] = row
    return TokenTable(table.words, table.vectors[order.to(table.vectors.device)], table.padding)


def _seen(sharing: Sharing, victim: Victim, start: Victim) -> nn.Module:
    shared = set(sharing.names(victim.body))
    hidden = {name: value for name, value in start.body.named_parameters() if name not in shared}
    if not hidden:
        return victim.body  # the same object, so that attackers share a search
    body = deepcopy(victim.body)
    with torch.no_grad():
        for name, value in hidden.items():
            body.get_parameter(name).copy_(value)
    return body
