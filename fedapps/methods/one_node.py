"""References of which one node does all the work: training on the data of all nodes, and no training at all."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedapps.base.options import option
from fedapps.strategies import BaseStrategy, Profile, RoundStep, Sampler, in_key_order

from .base import Conflict, Method, Role, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class FirstNode(Sampler):
    """The first node in key order."""

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
    line = "one node trains on the data of all nodes; no privacy (Cloud in the paper of APFL)"
    sends = "all data, simulated"
    helps = "the reference without privacy"
    aliases: ClassVar = {"cloud": ""}
    pools_data = True
    Options = CentralizedOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message != "train":
            return {}
        return {"pooled": True, "steps": self.options.steps or server_round.run.training.steps}

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
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
    line = "no training: the initial model, for example with weights from a file"
    work = "none"
    helps = "pretrained weights; the floor"
    tuned_keys: ClassVar[tuple[str, ...]] = ()

    @property
    def role(self) -> Role:
        return "reference"

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.evaluation import NoTraining

        return [NoTraining()]

    def privacy_conflict(self, dp: str) -> str:
        return "no node trains, so noise would only spoil the initial model"

    def robustness_conflict(self) -> str:
        return "one node replies, so there is no other reply to compare its reply with"
