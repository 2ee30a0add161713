"""What the methods with private parameters have in common."""

from typing import TYPE_CHECKING, ClassVar

from strategies.base import BaseStrategy
from strategies.partial_aggregation import PartialAggregation
from tasks.private_parameters import PrivateParameters

from .base import Method
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from tasks.profiles import TaskProfiles


class PartialMethod(Method):
    """A method that keeps the parameters of some patterns on the nodes."""

    #: Glob patterns of the parameters that stay.
    patterns: ClassVar[tuple[str, ...]] = ()

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(self.patterns)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(PartialAggregation)
