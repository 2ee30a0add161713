"""FFA-LoRA: the factors A of all adapters stay as they start, and only B is trained."""

from fedapps.strategies import BaseStrategy, TrainedInTurn

from .base import Method
from .strategy_parts import StrategyParts


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
