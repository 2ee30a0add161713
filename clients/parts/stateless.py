"""Private parameters that are not kept: each round starts from the initial ones."""

from dataclasses import dataclass

from torch import nn

from clients.local_part import LocalPart, NodeRound
from clients.named_arrays import Arrays
from clients.node_memory import kept_arrays, memory_of


@dataclass(frozen=True)
class Stateless(LocalPart):
    """Forget the trained private parameters after each round. The memory of other parts is kept."""

    def kept(self, kept: Arrays) -> Arrays:
        return kept_arrays({}, memory_of(kept))

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays | None:
        return {}
