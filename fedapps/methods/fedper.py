"""FedPer: the head of the model stays on the nodes."""

from fedapps.tasks.base import Task
from fedapps.tasks.profiles import PrivateParameters

from .partial import PartialMethod


class FedPer(PartialMethod):
    """Body and head are trained together; the body is averaged, and each node keeps its head."""

    name = "fedper"
    summary = "FedPer: the head of the model stays on the nodes, only the body is averaged"
    citation = (
        "Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818"
    )
    good_for = "labels mean different things on nodes"
    needs = ("head",)

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(task.roles.head)
