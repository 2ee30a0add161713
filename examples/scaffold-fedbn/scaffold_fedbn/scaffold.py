"""SCAFFOLD: control variates correct the drift of local training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.strategies import BaseStrategy
from fedapps.tasks.options import option

from fedapps.methods.base import Conflict, Method
from fedapps.methods.strategy_parts import StrategyParts

from .strategy import ScaffoldStrategy

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.tasks.base import Task

    from fedapps.config.run_config import RunConfig


@dataclass(frozen=True)
class ScaffoldOptions:
    """The options of SCAFFOLD."""

    global_learning_rate: float = option(1.0, "global step size η_g of the server", above=0)


class Scaffold(Method):
    """Nodes add the difference between the server's and their own control variate to every local gradient."""

    name = "scaffold"
    line = "SCAFFOLD: FedAvg with control variates that correct the drift of local SGD"
    citation = (
        "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, "
        "https://arxiv.org/abs/1910.06378"
    )
    Options = ScaffoldOptions

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        server_optimizer = parts.optimizer("sgd", self.options.global_learning_rate)
        return parts.build(ScaffoldStrategy, server_optimizer=server_optimizer)

    def conflicts(self, run: "RunConfig", task: "Task") -> Iterator[Conflict]:
        steps = "a control variate is the mean of K gradients, taken from K steps of SGD at one learning rate"
        training = run.training
        if training.optimizer != "sgd":
            yield (
                {"optimizer", "methods"},
                f"optimizer = {training.optimizer!r}: must be 'sgd' with scaffold: {steps}",
            )
        if training.clip_norm:
            yield {"clip_norm", "methods"}, f"clip-norm = {training.clip_norm:g}: must be 0 with scaffold: {steps}"
        if training.linear_decay:
            yield {"linear_decay", "methods"}, f"linear-decay = true: must be false with scaffold: {steps}"
        if training.plateau_patience:
            given = f"plateau-patience = {training.plateau_patience}"
            yield {"plateau_patience", "methods"}, f"{given}: must be 0 with scaffold: {steps}"
        if run.weighting != "uniform":
            given = f"weighting = {run.weighting!r}"
            yield {"weighting", "methods"}, f"{given}: must be 'uniform' with scaffold, whose control is a plain mean"

    def privacy_conflict(self, dp: str) -> str:
        return ScaffoldStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        return ScaffoldStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from .local_part import ControlVariates

        return [ControlVariates()]
