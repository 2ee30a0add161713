"""FedRep: the head stays on the nodes and is trained first, then the body alone.

Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, Algorithm 1,
https://arxiv.org/abs/2102.07078.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedapps.base.options import Range, option
from fedapps.clients.local_part import PHASES, LocalPart, NodeRound
from fedapps.clients.training import Phase
from fedapps.tasks.base import NodeData

from .partial import PrivateHead


@dataclass(frozen=True)
class FedRepOptions:
    """The options of FedRep."""

    head_epochs: int = option(
        10, "epochs in which a node trains its head alone, before those of the body", minimum=1, search=Range(1, 10)
    )


class FedRep(PrivateHead):
    """A round trains the head with the received body frozen, then the body with the head frozen."""

    name = "fedrep"
    summary = "FedRep: the head stays on the nodes; each round trains the head alone, then the body alone"
    citation = (
        "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, "
        "https://arxiv.org/abs/2102.07078"
    )
    work = "head, then body"
    good_for = "one representation, different outputs"
    Options = FedRepOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedRepPart(self.options)]


@dataclass(frozen=True)
class FedRepPart(LocalPart):
    """Split local training into a phase of the private and a phase of the shared parameters, on the same examples."""

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    options: FedRepOptions = FedRepOptions()

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        # Algorithm 1: τ epochs of the head with the received body, then the body with the new head
        joint = plan[-1]
        names = [name for name, _ in model.named_parameters()]
        head = replace(
            joint,
            training=replace(joint.training.for_epochs(self.options.head_epochs), learning_rate=joint.rate),
            trainable=[name for name in names if name not in node_round.received],
            prior=None,
            plateau=None,
            validation_loss=None,
        )
        return [*plan[:-1], head, replace(joint, trainable=[name for name in names if name in node_round.received])]
