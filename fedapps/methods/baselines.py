"""Methods without a federation: every node alone, one node with the data of all, and no training at all."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedapps.base.options import option
from fedapps.clients.arrays import Arrays, kept_arrays, memory_of
from fedapps.clients.local_part import EARLIER_STAGES, PHASES, LocalPart, NodeRound
from fedapps.clients.settings import LocalTraining
from fedapps.clients.training import Phase
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, InTurn, Profile, RoundStep, Sampler, in_key_order
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Method, Role, StrategyParts, own_draws

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
        if self.options.participation == "in-turn":
            yield from own_draws(run, "local.participation = 'in-turn', which chooses the nodes itself")


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


@dataclass(frozen=True)
class FirstNode(Sampler):
    """The first node in key order."""

    of_rounds: ClassVar[bool] = True

    def sample(self, profiles: Collection[Profile], server_round: int, purpose: RoundStep) -> list[Profile]:
        return in_key_order(profiles)[:1]


class OneNode(Method):
    """A method whose rounds need the first node only."""

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, sampler=FirstNode(), min_replies=1)


@dataclass(frozen=True)
class CentralizedOptions:
    """The options of centralised training."""

    steps: int = option(
        0,
        "optimizer steps per round, for example as many as all nodes of a federated round take together; 0 = the steps "
        "or epochs of the run",
        minimum=0,
    )


class Centralized(OneNode):
    """The baseline without privacy. It is possible only where one folder holds the data of all nodes."""

    name = "centralized"
    summary = "one node trains on the data of all nodes; no privacy (Cloud in the paper of APFL)"
    sends = "all data, simulated"
    good_for = "the reference without privacy"
    aliases: ClassVar = {"cloud": ""}
    pools_data = True
    Options = CentralizedOptions

    def training(self, training: LocalTraining) -> LocalTraining:
        return replace(training, steps=self.options.steps or training.steps)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if run.collect_after and run.state_backend == "context":
            yield (
                {"collect_after", "methods", "state_backend"},
                f"state-backend = 'context': must be 'disk' with collect-after = {run.collect_after} and the method "
                f"{self.name}, which trains on what all nodes collected: a context holds the data of one node",
            )

    def privacy_conflict(self, dp: str) -> str:
        return "one node trains on the data of all nodes, so there is nothing left to hide from it"

    def robustness_conflict(self) -> str:
        return "one node trains, so there is no other reply to compare its reply with"


class Untrained(OneNode):
    """The floor of a comparison: the node replies without a step in every round."""

    name = "untrained"
    summary = "no training: the initial model, for example with weights from a file"
    work = "none"
    good_for = "pretrained weights; the floor"
    tuned_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def role(self) -> Role:
        return "reference"

    def local_parts(self) -> Sequence[LocalPart]:
        return [UntrainedPart()]

    def privacy_conflict(self, dp: str) -> str:
        return "no node trains, so noise would only spoil the initial model"

    def robustness_conflict(self) -> str:
        return "one node replies, so there is no other reply to compare its reply with"


@dataclass(frozen=True)
class UntrainedPart(LocalPart):
    """Reply to training with what was received, without a step; evaluations are as usual."""

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        return []
