"""Adaptive updating (FedVocab): adapt the private parameters to what was received, then train all together.

Zhang et al., FedVocab, Section 3.3: a node that was not drawn for some rounds has private parameters that no longer fit
the shared ones. It trains them alone for one epoch, with the received parameters frozen, before it trains the whole
model. "It is sufficient to reuse the same optimization method": each phase has the same optimizer with the same
settings, but separate moments and learning-rate decay, and no gradient of one phase reaches the other. LG-FedAvg (Liang
et al. 2020, https://arxiv.org/abs/2001.01523) is the same without the first phase.

A node adapts "once receiving new global parameters". An evaluation brings such parameters, too, so the node can adapt
before it. It does not keep the result: the paper adapts as a part of local training, and how often a model is evaluated
must not change how it is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fedapps.clients.arrays import memory_of
from fedapps.clients.local_part import PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.training import Phase, kept_rate, run_plan
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.base import NodeData
from torch import nn

from fedapps.base.options import option


@dataclass(frozen=True)
class AdaptiveUpdating(LocalPart):
    """Put a phase that trains the private parameters alone before the joint phase, on the same examples.

    Buffers, such as the statistics of a normalisation, follow the data in both phases. A plateau gives the first phase
    its rate, and counts the epochs of the joint phase only.

    Parameters
    ----------
    adapt_epochs : int
        Epochs of the first phase. With 0, or where no parameter is private, only the joint phase is left.
    adapt_rate : float
        Factor above 0 on the learning rate of the first phase; 1 = the rate of the joint phase, as in the paper.
    adapt_before_evaluation : bool
        Whether to adapt the private parameters before this evaluation, too. The metrics of the model that is not
        adapted then start with ``stale.``. Adapted parameters are not kept.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    adapt_epochs: int = option(0, "epochs of the first phase", minimum=0)
    adapt_rate: float = option(1.0, "factor on its learning rate", above=0)
    adapt_before_evaluation: bool = False

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        joint = plan[-1]
        rate = joint.plateau.learning_rate if joint.plateau else joint.training.learning_rate
        return [*plan[:-1], *self._adapt(joint, rate, model, node_round), joint]

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Adapt the private parameters of ``model``, without the prior of training."""
        if not self.adapt_before_evaluation or node_round.data.count("train") == 0:
            return Prepared()
        phase = Phase(node_round.settings.training)
        rate = kept_rate(memory_of(node_round.kept), phase.training.learning_rate)
        plan = self._adapt(phase, rate, model, node_round)
        with node_round.torch_seed("adapt"):
            trained = run_plan(model, plan, node_round.epochs(model, node_round.data), node_round.task.loss)
        return Prepared(trained.steps)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase at the rate of the first phase."""
        rate = phase.training.learning_rate * self.adapt_rate
        return replace(phase, training=replace(phase.training, learning_rate=rate))

    def unprepared_prefix(self) -> str | None:
        return STALE_METRICS_PREFIX if self.adapt_before_evaluation and self.adapt_epochs else None

    def _adapt(self, joint: Phase, rate: float, model: nn.Module, node_round: NodeRound) -> list[Phase]:
        """The phase that trains the private parameters; none without epochs or private parameters."""
        private = [name for name, _ in model.named_parameters() if name not in node_round.received]
        if self.adapt_epochs == 0 or not private:
            return []
        training = replace(joint.training.for_epochs(self.adapt_epochs), learning_rate=rate * self.adapt_rate)
        return [replace(joint, training=training, trainable=private, plateau=None, validation_loss=None)]
