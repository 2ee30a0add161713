"""No training: the initial model is evaluated as it is, for example with weights from a file."""

from collections.abc import Mapping
from typing import ClassVar

from fedapps.strategies import BaseStrategy

from .base import Method, Role, Round, Scalar
from .strategy_parts import FirstNode, StrategyParts


class Untrained(Method):
    """The floor of a comparison: one node replies without a step in every round."""

    name = "untrained"
    line = "no training: the initial model, for example with weights from a file"
    tuned_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def role(self) -> Role:
        return "reference"

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, sampler=FirstNode(), min_replies=1)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"epochs": 0, "steps": 0} if server_round.message == "train" else {}

    def privacy_conflict(self, dp: str) -> str:
        return "no node trains, so noise would only spoil the initial model"

    def robustness_conflict(self) -> str:
        return "one node replies, so there is no other reply to compare its reply with"
