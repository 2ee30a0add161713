"""Methods that keep parameters on the nodes and do nothing else: LG-FedAvg, FedPer and FedBN."""

from dataclasses import dataclass
from glob import escape
from typing import ClassVar

from torch import nn

from fedapps.clients.arrays import Arrays
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.strategies import PartialAggregation
from fedapps.tasks.base import Task, normalisation_names
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


class PrivateHead(PartialMethod):
    """A method that keeps the head of the model on the nodes."""

    needs = ("head",)

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(task.roles.head)


class LgFedAvg(PartialMethod):
    """The representation stays on the nodes, only what turns it into the output is averaged."""

    name = "lg-fedavg"
    summary = "LG-FedAvg: the body of the model stays on the nodes, only the head is averaged"
    citation = "Liang et al., Think Locally, Act Globally, 2020, https://arxiv.org/abs/2001.01523"
    good_for = "inputs differ, outputs mean the same"
    needs = ("body",)

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(task.roles.body)


class FedPer(PrivateHead):
    """Body and head are trained together; the body is averaged, and each node keeps its head."""

    name = "fedper"
    summary = "FedPer: the head of the model stays on the nodes, only the body is averaged"
    citation = (
        "Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818"
    )
    good_for = "labels mean different things on nodes"


class FedBN(Method):
    """FedAvg over everything but the parameters and buffers of normalisation modules."""

    name = "fedbn"
    summary = "FedBN: FedAvg, but parameters and statistics of normalisation layers stay on the nodes"
    citation = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, "
        "https://arxiv.org/abs/2102.07623"
    )
    good_for = "inputs differ (sensors, light)"
    needs = ("normalisation",)
    needs_model = True

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(tuple(map(escape, normalisation_names(task))))
