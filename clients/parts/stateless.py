"""Private parameters that are not kept: each round starts from the initial ones."""

from dataclasses import dataclass

from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.named_arrays import Arrays
from fedapps.clients.node_memory import kept_arrays, memory_of
from torch import nn


@dataclass(frozen=True)
class Stateless(LocalPart):
    """Forget the trained private parameters after each round. The memory of other parts is kept."""

    def kept(self, kept: Arrays) -> Arrays:
        return kept_arrays({}, memory_of(kept))

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        return {}
