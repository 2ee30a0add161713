"""FedVocab: vocabulary and embedding stay private, with adaptive updating."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.strategies import BaseStrategy, PartialAggregation
from fedapps.strategies.wire import STALE_METRICS_PREFIX
from fedapps.tasks.profiles import PrivateParameters

from .base import Conflict, Round, Scalar
from .fedavg import logit_adjustment_option
from .partial import PartialMethod, optimizer_config
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.config.run_config import RunConfig
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FedVocabOptions:
    """The options of FedVocab."""

    adapt_epochs: int = option(
        1,
        "epochs with the shared parameters frozen, before all are trained; 0 = no adaptive updating",
        minimum=0,
    )
    adapt_rate: float = option(
        1.0, "factor on the learning rate of these epochs; 1 as in the paper", above=0, search=Range(0.01, 1, log=True)
    )
    adapt_before_evaluation: bool = option(
        True,
        "adapt before an evaluation, too, and keep nothing of it; stale.* are then the metrics without this",
    )
    logit_adjustment: float = logit_adjustment_option()
    stateless: bool = option(
        False, "keep no private parameters: each round and each evaluation adapts those that the node started with"
    )
    own_start: bool = option(False, "let nodes start from embeddings of their own (Different init in the paper)")


class FedVocab(PartialMethod):
    """Private word vectors under a shared encoder and classifier."""

    name = "fedvocab"
    line = "FedVocab: vocabulary and embedding stay private, with adaptive updating"
    citation = "Zhang et al., Federated Model Decomposition with Private Vocabulary for Text Classification, EMNLP 2022"
    work = "+ adaptive updating"
    helps = "each node has words that others lack"
    task = "text"
    patterns = ("embedding.*",)
    Options = FedVocabOptions

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        return PrivateParameters(self.patterns, self.options.own_start)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        means = parts.common["metric_means"]
        stale = {STALE_METRICS_PREFIX + name: rule for name, rule in means.items()}
        return parts.build(PartialAggregation, metric_means={**means, **stale})

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        chosen = self.options
        if server_round.message == "evaluate" and not chosen.adapt_before_evaluation:
            return {}
        return {
            "adapt-epochs": chosen.adapt_epochs,
            "adapt-rate": chosen.adapt_rate,
            "adapt-before-evaluation": chosen.adapt_before_evaluation,
            "logit-adjustment": chosen.logit_adjustment,
            **optimizer_config(server_round),
        }

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        if self.options.stateless and not (self.options.adapt_epochs and self.options.adapt_before_evaluation):
            yield (
                {"methods"},
                "fedvocab.stateless = true: must be false with adapt-epochs = 0 or adapt-before-evaluation = false, "
                "because nodes would be evaluated with embeddings that they never trained",
            )

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.adaptive_updating import AdaptiveUpdating
        from fedapps.clients.parts.logit_adjustment import LogitAdjustment
        from fedapps.clients.parts.reconstruction import Stateless

        parts: list[LocalPart] = [AdaptiveUpdating(), LogitAdjustment()]
        return [*parts, Stateless()] if self.options.stateless else parts
