"""Training alone: every node with its own data, without a federation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedapps.base.options import option
from fedapps.clients.arrays import Arrays, kept_arrays, memory_of
from fedapps.clients.local_part import EARLIER_STAGES, LocalPart
from fedapps.clients.settings import LocalTraining
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, InTurn
from fedapps.tasks.base import Task
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role
from .strategy_parts import StrategyParts

EVERYTHING = PrivateParameters(("*",))


class Alone(Method):
    """A method whose parameters are all private."""

    @property
    def role(self) -> Role:
        return "alone"

    def private(self, task: Task) -> PrivateParameters:
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
    summary = "every node alone with its own data"
    good_for = "much data on each node; the floor"
    Options = LocalOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        if self.options.participation == "drawn":
            return super().strategy(parts)
        return parts.build(BaseStrategy, sampler=InTurn(parts.run.fraction_train, parts.run.seed))

    def training(self, training: LocalTraining) -> LocalTraining:
        return training.for_epochs(self.options.epochs) if self.options.epochs else training

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
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
    summary = "single-task learning: every node alone, a fresh model in every stage"
    good_for = "stages without anything in common"
    needs_stages = True

    def local_parts(self) -> Sequence[LocalPart]:
        return [StlPart()]


@dataclass(frozen=True)
class StlPart(LocalPart):
    """Single-task learning: every stage starts from the initial model."""

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES})

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        return kept_arrays({}, memory_of(carried))

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        return stages * sum(parameter.numel() for parameter in model.parameters())
