"""FedPer: the head of the model stays on the nodes."""

from typing import TYPE_CHECKING

from fedapps.tasks.profiles import PrivateParameters

from .partial import PartialMethod

if TYPE_CHECKING:
    from fedapps.tasks.profiles import TaskProfiles


class FedPer(PartialMethod):
    """Body and head are trained together; the body is averaged, and each node keeps its head."""

    name = "fedper"
    line = "FedPer: the head of the model stays on the nodes, only the body is averaged"
    citation = (
        "Arivazhagan et al., Federated Learning with Personalization Layers, 2019, https://arxiv.org/abs/1912.00818"
    )
    helps = "labels mean different things on nodes"
    needs = ("head",)

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(task.roles.head)
