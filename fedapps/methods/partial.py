"""Methods with private parameters: what they have in common, and LG-FedAvg, which is nothing else."""

from typing import TYPE_CHECKING, ClassVar

from fedapps.strategies import BaseStrategy, PartialAggregation
from fedapps.tasks.profiles import PrivateParameters

from .base import Method, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.tasks.profiles import TaskProfiles


def optimizer_config(server_round: Round) -> dict[str, Scalar]:
    """The settings of the local optimizer, which EVALUATE messages need if nodes train before an evaluation."""
    training = server_round.run.training_in(server_round.number)
    return {
        "learning-rate": training.learning_rate,
        "momentum": training.momentum,
        "weight-decay": training.weight_decay,
        "clip-norm": training.clip_norm,
        "linear-decay": training.linear_decay,
    }


class PartialMethod(Method):
    """A method that keeps the parameters of some patterns on the nodes."""

    #: Glob patterns of the parameters that stay.
    patterns: ClassVar[tuple[str, ...]] = ()

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(self.patterns)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(PartialAggregation)


class LgFedAvg(PartialMethod):
    """The representation stays on the nodes, only what turns it into the output is averaged."""

    name = "lg-fedavg"
    line = "LG-FedAvg: the body of the model stays on the nodes, only the head is averaged"
    citation = "Liang et al., Think Locally, Act Globally, 2020, https://arxiv.org/abs/2001.01523"
    helps = "inputs differ, outputs mean the same"
    needs = ("body",)

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(task.roles.body)
