"""Evaluation of other models than the one that the message brings: the node's own, or the one of all clusters; and of
the same model, which is not trained.

FedVLN evaluates the model that the node trained: Zhou and Wang, FedVLN: Privacy-preserving Federated
Vision-and-Language Navigation, ECCV 2022, Section 4.2 ("For validation, we used the local models after local
training"), https://arxiv.org/abs/2203.14936.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from fedapps.clients.arrays import Arrays, get_arrays, load_arrays, memory_of
from fedapps.clients.local_part import EVALUATED_MODEL, PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.messages import read_arrays
from fedapps.clients.training import Phase
from fedapps.strategies.wire import HIERARCHICAL_SHARED
from fedapps.tasks.base import NodeData
from flwr.app import RecordDict
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


@dataclass(frozen=True)
class NoTraining(LocalPart):
    """Reply to training with what was received, without a step; evaluations are as usual."""

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        return []


@dataclass(frozen=True)
class SharedEvaluation(LocalPart):
    """Evaluate the model that all clusters share, too, if the message brings it; its metrics start with ``shared.``.

    Parameters
    ----------
    shared : dict of arrays, or None
        The model of all clusters.
    """

    shared: Arrays | None = field(default=None, compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        record = content.array_records.get(HIERARCHICAL_SHARED)
        return self if record is None else replace(self, shared=read_arrays(HIERARCHICAL_SHARED, record))

    def also_evaluated(self) -> Mapping[str, Arrays]:
        return {} if self.shared is None else {"shared": self.shared}
