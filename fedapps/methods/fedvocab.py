"""FedVocab: vocabulary and embedding stay private, with adaptive updating.

Zhang et al., FedVocab, Section 3.3: a node that was not drawn for some rounds has private parameters that no longer fit
the shared ones. It trains them alone for one epoch, with the received parameters frozen, before it trains the whole
model. "It is sufficient to reuse the same optimization method": each phase has the same optimizer with the same
settings, but separate moments and learning-rate decay, and no gradient of one phase reaches the other. LG-FedAvg (Liang
et al. 2020, https://arxiv.org/abs/2001.01523) is the same without the first phase.

A node adapts "once receiving new global parameters". An evaluation brings such parameters, too, so the node can adapt
before it. It does not keep the result: the paper adapts as a part of local training, and how often a model is evaluated
must not change how it is trained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import memory_of
from fedapps.clients.local_part import PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.logit_adjustment import LogitAdjustment
from fedapps.clients.training import Phase, kept_rate, run_plan
from fedapps.config.run_config import RunConfig
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.base import NodeData, Task
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict
from .fedavg import logit_adjustment_option
from .partial import PartialMethod, Stateless


@dataclass(frozen=True)
class FedVocabOptions:
    """The options of FedVocab."""

    adapt_epochs: int = option(
        1, "epochs with the shared parameters frozen, before all are trained; 0 = no adaptive updating", minimum=0
    )
    adapt_rate: float = option(
        1.0, "factor on the learning rate of these epochs; 1 as in the paper", above=0, search=Range(0.01, 1, log=True)
    )
    adapt_before_evaluation: bool = option(
        True, "adapt before an evaluation, too, and keep nothing of it; stale.* are then the metrics without this"
    )
    logit_adjustment: float = logit_adjustment_option()
    stateless: bool = option(
        False, "keep no private parameters: each round and each evaluation adapts those that the node started with"
    )
    own_start: bool = option(False, "let nodes start from embeddings of their own (Different init in the paper)")


class FedVocab(PartialMethod):
    """Private word vectors under a shared encoder and classifier."""

    name = "fedvocab"
    summary = "FedVocab: vocabulary and embedding stay private, with adaptive updating"
    citation = "Zhang et al., Federated Model Decomposition with Private Vocabulary for Text Classification, EMNLP 2022"
    work = "+ adaptive updating"
    good_for = "each node has words that others lack"
    task = "text"
    patterns = ("embedding.*",)
    Options = FedVocabOptions

    def private(self, task: Task) -> PrivateParameters:
        return PrivateParameters(self.patterns, self.options.own_start)

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if self.options.stateless and not (self.options.adapt_epochs and self.options.adapt_before_evaluation):
            yield (
                {"methods"},
                "fedvocab.stateless = true: must be false with adapt-epochs = 0 or adapt-before-evaluation = false, "
                "because nodes would be evaluated with embeddings that they never trained",
            )

    def local_parts(self) -> Sequence[LocalPart]:
        parts: list[LocalPart] = [FedVocabPart(self.options)]
        if self.options.logit_adjustment:
            parts.append(LogitAdjustment(self.options.logit_adjustment))
        if self.options.stateless:
            parts.append(Stateless())
        return parts


@dataclass(frozen=True)
class FedVocabPart(LocalPart):
    """Put a phase that trains the private parameters alone before the joint phase, on the same examples.

    Buffers, such as the statistics of a normalisation, follow the data in both phases. A plateau gives the first phase
    its rate, and counts the epochs of the joint phase only.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({PHASES})

    options: FedVocabOptions = FedVocabOptions()

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        joint = plan[-1]
        return [*plan[:-1], *self._adapt(joint, joint.rate, model, node_round), joint]

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        """Adapt the private parameters of ``model``, without the prior of training."""
        if not self.options.adapt_before_evaluation or node_round.data.count("train") == 0:
            return Prepared()
        phase = Phase(node_round.settings.training)
        rate = kept_rate(memory_of(node_round.kept), phase.training.learning_rate)
        plan = self._adapt(phase, rate, model, node_round)
        with node_round.torch_seed("adapt"):
            trained = run_plan(model, plan, node_round.epochs(model, node_round.data), node_round.task.loss)
        return Prepared(trained.steps)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase at the rate of the first phase."""
        rate = phase.training.learning_rate * self.options.adapt_rate
        return replace(phase, training=replace(phase.training, learning_rate=rate))

    def unprepared_prefix(self) -> str | None:
        return STALE_METRICS_PREFIX if self.options.adapt_before_evaluation and self.options.adapt_epochs else None

    def _adapt(self, joint: Phase, rate: float, model: nn.Module, node_round: NodeRound) -> list[Phase]:
        """The phase that trains the private parameters; none without epochs or private parameters."""
        private = [name for name, _ in model.named_parameters() if name not in node_round.received]
        if self.options.adapt_epochs == 0 or not private:
            return []
        training = replace(
            joint.training.for_epochs(self.options.adapt_epochs), learning_rate=rate * self.options.adapt_rate
        )
        return [replace(joint, training=training, trainable=private, plateau=None, validation_loss=None)]
