"""FedAvg of adapters of low rank, which replace a matrix W by W + B A: FedIT, FFA-LoRA, RoLoRA and FedSA-LoRA."""

from fedapps.strategies import BaseStrategy, TrainedInTurn
from fedapps.tasks.base import Task
from fedapps.tasks.profiles import LowRank, PrivateParameters

from .base import Method, StrategyParts
from .partial import PartialMethod


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


class FfaLora(Method):
    """FedAvg in which all nodes have the A of the start, so that the mean of the products B A is exact."""

    name = "ffa-lora"
    summary = "FFA-LoRA: FedAvg of adapters whose factor A is frozen, so that averages of B A are exact"
    citation = (
        "Sun et al., Improving LoRA in Privacy-Preserving Federated Learning, ICLR 2024, "
        "https://arxiv.org/abs/2403.12313"
    )
    sends = "replies without A"
    good_for = "uneven data or noise, with adapters"
    needs = ("factors",)
    Strategy = TrainedInTurn

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(self.Strategy, still=[[parts.factors.a]])


class RoLora(Method):
    """FedAvg that trains B in odd rounds and A in even ones, so that the means of the products B A are exact."""

    name = "rolora"
    summary = "RoLoRA: FedAvg of adapters that trains B in odd rounds and A in even ones"
    citation = (
        "Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, 2024, "
        "https://arxiv.org/abs/2409.02346"
    )
    sends = "replies without A or B"
    good_for = "uneven data, small adapters"
    needs = ("factors",)
    Strategy = TrainedInTurn

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(self.Strategy, still=[[parts.factors.a], [parts.factors.b]])


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
