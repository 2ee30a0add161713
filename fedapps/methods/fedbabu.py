"""FedBABU: the head is never trained together; nodes fine-tune the whole model before an evaluation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.strategies import BaseStrategy, PartialAggregation
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.profiles import PrivateParameters

from .base import Round, Scalar
from .partial import PartialMethod, optimizer_config
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FedBabuOptions:
    """The options of FedBABU."""

    fine_tune_epochs: int = option(
        5,
        "epochs in which a node trains the whole model before an evaluation; it keeps nothing of it; stale.* are the "
        "metrics without them",
        minimum=0,
        search=Range(1, 10),
    )


class FedBabu(PartialMethod):
    """All nodes keep the same untrained head and average the body that they train below it."""

    name = "fedbabu"
    line = "FedBABU: the body is trained below a fixed random head; nodes fine-tune the whole model before evaluations"
    citation = (
        "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, "
        "https://arxiv.org/abs/2106.06042"
    )
    work = "+ fine-tuning"
    helps = "uneven labels; new nodes adapt fast"
    needs = ("head",)
    Options = FedBabuOptions

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(task.roles.head)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        means = parts.common["metric_means"]
        stale = {STALE_METRICS_PREFIX + name: rule for name, rule in means.items()}
        return parts.build(PartialAggregation, metric_means={**means, **stale})

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "train":
            return {}
        return {"fine-tune-epochs": self.options.fine_tune_epochs, **optimizer_config(server_round)}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.body_alone import BodyAlone

        return [BodyAlone()]
