"""Methods with private parameters: what they have in common, and LG-FedAvg, which is nothing else."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.strategies import PartialAggregation
from fedapps.tasks.base import Task
from fedapps.tasks.profiles import PrivateParameters

from .base import Method


class PartialMethod(Method):
    """A method that keeps the parameters of some patterns on the nodes."""

    Strategy = PartialAggregation
    #: Glob patterns of the parameters that stay.
    patterns: ClassVar[tuple[str, ...]] = ()

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(self.patterns)


@dataclass(frozen=True)
class Stateless(LocalPart):
    """Forget the trained private parameters after each round. The memory of other parts is kept."""

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {}


class LgFedAvg(PartialMethod):
    """The representation stays on the nodes, only what turns it into the output is averaged."""

    name = "lg-fedavg"
    summary = "LG-FedAvg: the body of the model stays on the nodes, only the head is averaged"
    citation = "Liang et al., Think Locally, Act Globally, 2020, https://arxiv.org/abs/2001.01523"
    good_for = "inputs differ, outputs mean the same"
    needs = ("body",)

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(task.roles.body)
