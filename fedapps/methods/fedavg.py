"""FedAvg, the base of all other methods here."""

from typing import ClassVar

from .base import Method


class FedAvg(Method):
    """Federated averaging with the run's sampler, weighting and server optimizer."""

    name = "fedavg"
    line = "FedAvg, or another server optimizer of the run config (SFL in the paper of APFL)"
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629"
    )
    aliases: ClassVar = {"sfl": ""}
