"""Evaluation of the node's own trained model in place of the server's (FedVLN).

Zhou and Wang, FedVLN: Privacy-preserving Federated Vision-and-Language Navigation, ECCV 2022, Section 4.2 ("For
validation, we used the local models after local training"), https://arxiv.org/abs/2203.14936.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedapps.clients.local_part import EVALUATED_MODEL, LocalPart, NodeRound, Prepared
from fedapps.clients.named_arrays import Arrays, get_arrays, load_arrays
from fedapps.clients.node_memory import memory_of
from torch import nn

_PREFIX = "local."


@dataclass(frozen=True)
class LocalEvaluation(LocalPart):
    """Evaluate the node's model as its last training left it, also the shared parameters.

    The node remembers the shared parameters that it trained, and evaluates with them in place of those that it
    receives. A node that was not drawn for some rounds is therefore evaluated with its old model, and a node that never
    trained with the received parameters. Training starts from the received parameters, as without this part.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL})

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        trained = get_arrays(model, node_round.received)
        return {_PREFIX + name: array for name, array in trained.items()}

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Put the shared parameters that the node trained last into ``model``."""
        memory = memory_of(node_round.kept)
        load_arrays(
            model, {name.removeprefix(_PREFIX): array for name, array in memory.items() if name.startswith(_PREFIX)}
        )
        return Prepared()
