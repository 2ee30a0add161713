"""RoLoRA: rounds train the factors B and A of all adapters in turns."""

from fedapps.strategies import BaseStrategy, TrainedInTurn

from .base import Method
from .strategy_parts import StrategyParts


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
