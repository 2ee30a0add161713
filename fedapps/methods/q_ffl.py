"""q-FFL: nodes with a large loss count more, so that the losses of all nodes become more alike.

Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, Algorithm 2, https://arxiv.org/abs/1905.10497.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from fedapps.base.options import Choices, option
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.training import mean_loss
from fedapps.config.run_config import RunConfig
from fedapps.strategies import BaseStrategy, QFedAvg
from fedapps.strategies.wire import Q_FFL_LOSS
from fedapps.tasks.base import Metrics, Task

from .base import Conflict, Method, StrategyParts, required


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
    weight_bound: float = option(
        5.0,
        "the largest powers F^q and F^(q-1) of a node, relative to the median of recent replies; 0 = unlimited",
        minimum=0,
    )


class QFfl(Method):
    """Minimise Σ p_k F_k^(q+1) / (q+1) over the nodes k by q-FedAvg.

    With the default, the mean over the nodes is that of FedAvg on validation data of the digits; a larger q helps the
    worst nodes more, and its steps become shorter.
    """

    name = "q-ffl"
    summary = "q-FFL by q-FedAvg: nodes with a large loss count more, for a fairer shared model"
    citation = "Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, https://arxiv.org/abs/1905.10497"
    work = "+ loss on all examples"
    good_for = "the worst nodes matter"
    needs = ("examples",)
    Options = QFflOptions
    Strategy = QFedAvg

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        options, learning_rate = self.options, parts.run.training.learning_rate
        lipschitz = options.lipschitz or 1 / learning_rate
        return parts.build(self.Strategy, q=options.q, lipschitz=lipschitz, weight_bound=options.weight_bound)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if self.options.lipschitz == 0:
            why = "its step takes L = 1 / learning-rate from SGD; set q-ffl.lipschitz for another optimizer"
            yield from required(run, self.name, why, optimizer="sgd")

    def local_parts(self) -> Sequence[LocalPart]:
        return [QFflPart()]


@dataclass(frozen=True)
class QFflPart(LocalPart):
    """Report F_k(w), the mean loss of the received model over all training examples of the node.

    It is measured before training and in evaluation mode, also where a round trains on a part of the examples.
    """

    def before_training(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, float]:
        loss = mean_loss(node_round.task, model, node_round.data, "train", node_round.device)
        return {Q_FFL_LOSS: loss}

    def metrics(self, model: nn.Module, node_round: NodeRound) -> Metrics:
        return {Q_FFL_LOSS: node_round.measured[Q_FFL_LOSS]}
