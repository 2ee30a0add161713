"""FedBABU: the head is never trained together; nodes fine-tune the whole model before an evaluation.

Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, Algorithm 1 and
Section 5, https://arxiv.org/abs/2106.06042.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import nn

from fedapps.base.options import Range, option
from fedapps.clients.arrays import memory_of
from fedapps.clients.local_part import EVALUATED_MODEL, PHASES, LocalPart, NodeRound, Prepared
from fedapps.clients.training import Phase, kept_rate, run_plan
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.base import NodeData

from .partial import PrivateHead


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


class FedBabu(PrivateHead):
    """All nodes keep the same untrained head and average the body that they train below it."""

    name = "fedbabu"
    summary = (
        "FedBABU: the body is trained below a fixed random head; nodes fine-tune the whole model before evaluations"
    )
    citation = (
        "Oh et al., FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022, "
        "https://arxiv.org/abs/2106.06042"
    )
    work = "+ fine-tuning"
    good_for = "uneven labels; new nodes adapt fast"
    Options = FedBabuOptions

    def local_parts(self) -> Sequence[LocalPart]:
        return [FedBabuPart(self.options)]


@dataclass(frozen=True)
class FedBabuPart(LocalPart):
    """Train the shared parameters alone. The node keeps nothing of the fine-tuning before an evaluation."""

    exclusive: ClassVar[frozenset[str]] = frozenset({EVALUATED_MODEL, PHASES})

    options: FedBabuOptions = FedBabuOptions()

    def plan(self, plan: Sequence[Phase], model: nn.Module, data: NodeData, node_round: NodeRound) -> Sequence[Phase]:
        body = [name for name, _ in model.named_parameters() if name in node_round.received]
        return [*plan[:-1], replace(plan[-1], trainable=body)]

    def before_evaluation(self, model: nn.Module, node_round: NodeRound) -> Prepared:
        if self.options.fine_tune_epochs == 0 or node_round.data.count("train") == 0:
            return Prepared()
        training = node_round.settings.training.for_epochs(self.options.fine_tune_epochs)
        rate = kept_rate(memory_of(node_round.kept), training.learning_rate)
        phase = Phase(replace(training, learning_rate=rate))
        with node_round.torch_seed("fine-tune"):
            epochs = node_round.epochs(model, node_round.data)
            return Prepared(run_plan(model, [phase], epochs, node_round.task.loss).steps)

    def adaptation(self, phase: Phase, model: nn.Module, node_round: NodeRound) -> Phase:
        """The phase with all parameters: a new node fine-tunes the whole model."""
        return replace(phase, trainable=("*",))

    def unprepared_prefix(self) -> str | None:
        return STALE_METRICS_PREFIX if self.options.fine_tune_epochs else None
