"""FedRep on a node: train the private head with the body frozen, then the body with the head frozen.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1,
https://arxiv.org/abs/2102.07078.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedapps.clients.local_part import PHASES, LocalPart, NodeRound
from fedapps.clients.training import Phase
from fedapps.tasks.base import NodeData
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class Alternating(LocalPart):
    """Split local training into a phase of the private and a phase of the shared parameters, on the same examples.

    Parameters
    ----------
    head_epochs : int
        Epochs of the private parameters; the shared ones are trained as the settings say.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    head_epochs: int = option(10, "epochs of the private parameters", minimum=1)

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        joint = plan[-1]
        names = [name for name, _ in model.named_parameters()]
        head = replace(
            joint,
            training=joint.training.for_epochs(self.head_epochs),
            trainable=[name for name in names if name not in node_round.received],
            prior=None,
            plateau=None,
            validation_loss=None,
        )
        return [*plan[:-1], head, replace(joint, trainable=[name for name in names if name in node_round.received])]
