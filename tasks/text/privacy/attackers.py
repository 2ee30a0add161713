"""Who reads along, by what he believes the words' vectors to be.

Gradients give an attacker vectors, not words; which words those are, his table says. The paper gives the attacker of
FedAvg the true table, that of FedRecon the true one but for the private words' rows, and that of FedVocab a table
"completely different from the known mapping" (Zhang et al., Appendix A.3; in the released code GPT-2's). The last is
the weakest of all. Vectors that every node starts from, such as GloVe's, are public, and training moves them little,
so that whoever holds the public table may read on; hence each method is tried by all three. Under FedAvg and FedRecon
the latter two are somebody who makes no use of the table that he sees: what the gradients alone give away. Where nodes
begin with secret vectors of their own (FedVocab's "Different init"), nobody holds the public table.
"""

from copy import deepcopy
from types import MappingProxyType

import torch
from torch import nn

from .audit import Attacker
from .sharing import Sharing, Victim
from .tokens import TokenTable

#: Each with what he holds.
ATTACKERS = MappingProxyType(
    {
        "known": "the victim's own table; under FedRecon without the private words' rows, which he makes up",
        "public": "the table that the victim started from, before its training",
        "foreign": "another table: the public one, its vectors dealt to other words",
    }
)


def attacker(name: str, sharing: Sharing, victim: Victim, start: Victim, seed: int) -> Attacker:
    """The attacker of that name on what a method shares; ``start`` is the victim before its training.

    He has the shared parameters of the body as they are, and of those not shared the victim's where he is "known", else
    those of ``start``. Raises ``ValueError`` for a name that is none of :data:`ATTACKERS`.
    """
    generator = torch.Generator().manual_seed(seed)
    if name == "known":
        private = [word for word in victim.table.words if not sharing.row(word)]
        # Of FedVocab no row is shared at all: here it is somebody who came by the table all the same.
        made_up = 0 < len(private) < len(victim.table.words)
        hidden = set(private) if made_up else set()
        return Attacker(name, victim.body, victim.table.without(hidden.__contains__, generator))
    if name == "public":
        return Attacker(name, _seen(sharing, victim, start), start.table)
    if name == "foreign":
        return Attacker(name, _seen(sharing, victim, start), permuted(start.table, generator))
    raise ValueError(f"attacker {name!r}: must be one of {', '.join(ATTACKERS)}")


def permuted(table: TokenTable, generator: torch.Generator) -> TokenTable:
    """The same words with each other's vectors, at random; the padding keeps its own."""
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
        return victim.body  # the same object, so that attackers can share a search
    body = deepcopy(victim.body)
    with torch.no_grad():
        for name, value in hidden.items():
            body.get_parameter(name).copy_(value)
    return body
