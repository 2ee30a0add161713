"""FedSA-LoRA: the factors A of all adapters are averaged, B stays on the nodes."""

from fedapps.tasks.base import Task
from fedapps.tasks.profiles import LowRank, PrivateParameters

from .partial import PartialMethod


class FedSaLora(PartialMethod):
    """Both factors are trained; A learns what all nodes have in common, B what is particular to a node."""

    name = "fedsa-lora"
    summary = "FedSA-LoRA: adapters whose factor A is averaged, while B stays on the nodes"
    citation = (
        "Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025, "
        "https://arxiv.org/abs/2410.01463"
    )
    good_for = "personal models, with adapters"
    needs = ("factors",)

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(((task.roles.factors or LowRank("", "", "")).b,))
