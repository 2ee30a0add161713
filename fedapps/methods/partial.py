"""What the methods with private parameters have in common."""

from typing import TYPE_CHECKING, ClassVar

from fedapps.strategies.algorithms.partial_aggregation import PartialAggregation
from fedapps.strategies.base import BaseStrategy
from fedapps.tasks.private_parameters import PrivateParameters

from .base import Method, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.tasks.profiles import TaskProfiles


def optimizer_config(server_round: Round) -> dict[str, Scalar]:
    """The settings of the local optimizer, which EVALUATE messages need if nodes train before an evaluation."""
    run = server_round.run
    return {
        "learning-rate": run.learning_rate_in(server_round.number),
        "weight-decay": run.weight_decay,
        "clip-norm": run.clip_norm,
        "linear-decay": run.linear_decay,
    }


class PartialMethod(Method):
    """A method that keeps the parameters of some patterns on the nodes."""

    #: Glob patterns of the parameters that stay.
    patterns: ClassVar[tuple[str, ...]] = ()

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(self.patterns)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(PartialAggregation)
