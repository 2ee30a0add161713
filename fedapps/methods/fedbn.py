"""FedBN: the normalisation layers stay on the nodes."""

from glob import escape

from fedapps.tasks.base import Task, normalisation_names
from fedapps.tasks.profiles import PrivateParameters

from .base import Method


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
