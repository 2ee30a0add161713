"""FedIT: the factors A and B of all adapters are averaged, each by itself."""

from .base import Method


class FedIt(Method):
    """FedAvg of both factors, whose product is not the mean of the nodes' products B A."""

    name = "fedit"
    line = "FedIT: FedAvg of adapters, whose factors A and B are averaged each by itself"
    citation = (
        "Zhang et al., Towards Building the Federated GPT: Federated Instruction Tuning, ICASSP 2024, "
        "https://arxiv.org/abs/2305.05644"
    )
    helps = "pretrained encoders, with adapters"
    needs = ("factors",)
