"""The attackers, by the word vectors that they assume.

Gradients give an attacker vectors, not words; a table maps vectors to words. In the paper the attacker of FedAvg has
the true table, that of FedRecon the true table without the rows of private words, and that of FedVocab a table
"completely different from the known mapping" (Zhang et al., Appendix A.3; GPT-2's in the released code). The last one
is the weakest. Initial vectors that all nodes share, such as GloVe's, are public, and training moves them little, so an
attacker with the public table may still read the text. Every method is therefore attacked by all three. Under FedAvg
and FedRecon the last two attackers ignore the table that they see, which shows what the gradients alone reveal. If
nodes start with secret vectors (FedVocab's "Different init"), no attacker has the public table.
"""

from copy import deepcopy
from types import MappingProxyType

import torch
from torch import nn

from .audit import Attacker
from .sharing import Sharing, Victim
from .tokens import TokenTable

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
