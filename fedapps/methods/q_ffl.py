"""q-FFL: nodes with a large loss count more, so that the losses of all nodes become more alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices
from fedapps.strategies import BaseStrategy

from .base import Conflict, Method, required
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task


@dataclass(frozen=True)
class QFflOptions:
    """The options of q-FFL."""

    q: float = option(
        0.01,
        "how much nodes with a large loss count, by the power q of the loss; 0 = FedAvg; the authors use 5 on Vehicle",
        minimum=0,
        maximum=20,
        search=Choices((0.0, 0.01, 0.1, 1.0, 5.0)),
    )
    lipschitz: float = option(
        0.0,
        "Lipschitz constant L of the gradient, from which the step follows; 0 = 1 / learning-rate, for SGD",
        minimum=0,
    )


class QFfl(Method):
    """Minimise Σ p_k F_k^(q+1) / (q+1) over the nodes k by q-FedAvg.

    With the default, the mean over the nodes is that of FedAvg on validation data of the digits; a larger q helps the
    worst nodes more, and its steps become shorter.
    """

    name = "q-ffl"
    line = "q-FFL by q-FedAvg: nodes with a large loss count more, for a fairer shared model"
    citation = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, https://arxiv.org/abs/1905.10497"
    work = "+ loss on all examples"
    helps = "the worst nodes matter"
    needs = ("examples",)
    Options = QFflOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import QFedAvg  # nodes do not need it

        lipschitz = self.options.lipschitz or 1 / parts.run.training.learning_rate
        return parts.build(QFedAvg, q=self.options.q, lipschitz=lipschitz)

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if self.options.lipschitz == 0:
            why = "its step takes L = 1 / learning-rate from SGD; set q-ffl.lipschitz for another optimizer"
            yield from required(run, self.name, why, optimizer="sgd")

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import QFedAvg

        return QFedAvg.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import QFedAvg

        return QFedAvg.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.received_loss import ReceivedLoss

        return [ReceivedLoss()]
