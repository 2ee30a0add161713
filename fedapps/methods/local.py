"""Training alone: every node with its own data, without a federation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.strategies import BaseStrategy, InTurn
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles

EVERYTHING = PrivateParameters(("*",))


class Alone(Method):
    """A method whose parameters are all private."""

    @property
    def role(self) -> Role:
        return "alone"

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return EVERYTHING


@dataclass(frozen=True)
class LocalOptions:
    """The options of local training."""

    participation: str = option(
        "drawn",
        "drawn: nodes train when they are drawn, as under the other methods; in-turn: the same number of nodes per "
        "round, but every node equally often",
        choices=["drawn", "in-turn"],
    )
    epochs: int = option(0, "local epochs per round; 0 = the epochs of the run", minimum=0)


class Local(Alone):
    """The baseline without a federation."""

    name = "local"
    line = "every node alone with its own data"
    helps = "much data on each node; the floor"
    Options = LocalOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        if self.options.participation == "drawn":
            return super().strategy(parts)
        return parts.build(BaseStrategy, sampler=InTurn(parts.run.fraction_train, parts.run.seed))

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "evaluate" or self.options.epochs == 0:
            return {}
        return {"epochs": self.options.epochs, "steps": 0}

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if self.options.participation == "drawn":
            return
        if run.sampling == "poisson":
            yield (
                {"methods", "sampling"},
                "sampling = 'poisson': must be 'fixed' with local.participation = 'in-turn', where no chance decides "
                "who trains",
            )
        if run.drop_nodes:
            yield (
                {"methods", "drop_nodes"},
                "drop-nodes = true: must be false with local.participation = 'in-turn', which chooses the nodes itself",
            )


class Stl(Alone):
    """The baseline of continual learning that cannot forget, because it keeps nothing."""

    name = "stl"
    line = "single-task learning: every node alone, a fresh model in every stage"
    helps = "stages without anything in common"
    needs_stages = True

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.earlier_stages import FreshStages

        return [FreshStages()]
