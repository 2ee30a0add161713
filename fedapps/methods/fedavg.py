"""FedAvg, the base of all other methods here, and FedSGD, its case of one step on all examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedapps.base.options import option
from fedapps.clients.local_part import LocalPart
from fedapps.clients.logit_adjustment import LogitAdjustment
from fedapps.clients.settings import LocalTraining
from fedapps.config.run_config import RunConfig
from fedapps.tasks.base import Task

from .base import Conflict, Method


def logit_adjustment_option() -> Any:
    """The option ``logit-adjustment`` of the methods that can adjust logits."""
    return option(
        0.0,
        "weight τ of the logarithms of a node's label shares, added to the logits in training (Menon et al. 2021) and "
        "in tests on examples with these shares; 0 = plain cross-entropy",
        minimum=0,
    )


@dataclass(frozen=True)
class FedAvgOptions:
    """The options of FedAvg."""

    logit_adjustment: float = logit_adjustment_option()


class FedAvg(Method):
    """Federated averaging with the run's sampler, weighting and server optimizer."""

    name = "fedavg"
    summary = "FedAvg, or another server optimizer of the run config (SFL in the paper of APFL)"
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "https://arxiv.org/abs/1602.05629"
    )
    good_for = "like data; the yardstick"
    aliases: ClassVar = {"sfl": ""}
    Options = FedAvgOptions

    def conflicts(self, run: RunConfig, task: Task) -> Iterator[Conflict]:
        if self.options.logit_adjustment and task.num_classes == 0:
            yield (
                {"methods", "task"},
                f"fedavg.logit-adjustment = {self.options.logit_adjustment}: must be 0 with task {run.task!r}, whose "
                "loss is not the cross-entropy of a classifier's logits",
            )

    def local_parts(self) -> Sequence[LocalPart]:
        return [LogitAdjustment(self.options.logit_adjustment)] if self.options.logit_adjustment else []


#: More examples than any node has, so that all of them are one batch.
ALL_EXAMPLES = 2**31 - 1


class FedSgd(Method):
    """The baseline of the paper of FedAvg: with weights by examples, a round is one step of centralised SGD."""

    name = "fedsgd"
    summary = "FedSGD: one SGD step on all examples of a node per round"
    citation = (
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017, "
        "Section 2, https://arxiv.org/abs/1602.05629"
    )
    work = "one step"
    good_for = "fast links; exact gradients"

    def training(self, training: LocalTraining) -> LocalTraining:
        return replace(training, epochs=1, steps=1, batch_size=ALL_EXAMPLES, optimizer="sgd")
