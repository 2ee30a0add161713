"""FedIT: FedAvg of the adapters' factors A and of their factors B."""

from .base import Method


class FedIt(Method):
    """FedAvg of both factors, whose product is not the mean of the nodes' products B A."""

    name = "fedit"
    summary = "FedIT: FedAvg of the factors A and the factors B of LoRA adapters"
    citation = (
        "Zhang et al., Towards Building the Federated GPT: Federated Instruction Tuning, ICASSP 2024, "
        "https://arxiv.org/abs/2305.05644"
    )
    good_for = "pretrained encoders, with adapters"
    needs = ("factors",)
