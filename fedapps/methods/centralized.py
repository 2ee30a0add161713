"""Centralised training: one node trains on the data of all nodes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedapps.strategies import BaseStrategy
from fedapps.tasks.options import option

from .base import Conflict, Method, Round, Scalar
from .strategy_parts import FirstNode, StrategyParts

if TYPE_CHECKING:
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class CentralizedOptions:
    """The options of centralised training."""

    steps: int = option(
        0,
        "optimizer steps per round, for example as many as all nodes of a federated round take together; 0 = the steps "
        "or epochs of the run",
        minimum=0,
    )


class Centralized(Method):
    """The baseline without privacy. It is possible only where one folder holds the data of all nodes."""

    name = "centralized"
    line = "one node trains on the data of all nodes; no privacy (Cloud in the paper of APFL)"
    aliases: ClassVar = {"cloud": ""}
    pools_data = True
    Options = CentralizedOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(BaseStrategy, sampler=FirstNode(), min_replies=1)

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
