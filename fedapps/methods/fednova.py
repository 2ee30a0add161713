"""FedNova: the mean of updates that are divided by the length of their local training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, Round, Scalar, required
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class FedNovaOptions:
    """The options of FedNova."""

    mu: float = option(
        0.0,
        "weight µ of a proximal term on the nodes, without momentum; 0 = none",
        minimum=0,
        search=Choices((0.0, 0.001, 0.01, 0.1)),
    )


class FedNova(Method):
    """Nodes with many local steps do not pull the shared model further than others.

    In the paper nodes count by their examples (``weighting = "num-examples"``).
    """

    name = "fednova"
    line = "FedNova: FedAvg of updates that are divided by the number of local steps"
    citation = (
        "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS "
        "2020, https://arxiv.org/abs/2007.07481"
    )
    helps = "nodes take different numbers of steps"
    Options = FedNovaOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import FedNova as FedNovaStrategy  # nodes do not need it

        return parts.build(FedNovaStrategy)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"proximal": self.options.mu} if server_round.message == "train" else {}

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        why = "updates are divided by the length of steps of SGD at one learning rate"
        plain: dict[str, Scalar] = {"optimizer": "sgd", "linear_decay": False, "plateau_patience": 0}
        if self.options.mu:
            plain["momentum"] = 0.0
        yield from required(run, self.name, why, **plain)
        rate = run.training.learning_rate
        if self.options.mu * rate >= 1:
            yield (
                {"learning_rate", "methods"},
                f"fednova.mu = {self.options.mu:g}: times learning-rate = {rate:g} must be below 1",
            )

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import FedNova as FedNovaStrategy

        if dp == "local":
            return "nodes send the number of their steps, which depends on how many examples they have"
        return FedNovaStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import FedNova as FedNovaStrategy

        return FedNovaStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.normalised import NormalisedUpdate
        from fedapps.clients.parts.proximal import Proximal

        return [Proximal(), NormalisedUpdate()]
