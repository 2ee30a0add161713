"""MOON: a contrast of representations holds the nodes near the shared model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Choices

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class MoonOptions:
    """The options of MOON."""

    mu: float = option(
        0.1,
        "weight µ of the contrast between the representations of the received and of the node's last model; 0 = FedAvg",
        minimum=0,
        search=Choices((0.0, 0.1, 1.0, 5.0, 10.0)),
    )
    temperature: float = option(0.5, "temperature of the contrast", above=0)


class Moon(Method):
    """The nodes draw their representation to that of the shared model, away from that of their last one.

    The representation is the task's (:meth:`fedapps.tasks.base.Task.features`), the input of the head; the paper puts
    two further linear layers, its projection head, before it. µ is the smallest of the 0.1, 1, 5 and 10 among which the
    paper chooses (5 on CIFAR-10, 1 on CIFAR-100); the temperature is the paper's.
    """

    name = "moon"
    line = "MOON: FedAvg, with the nodes' representations drawn to that of the shared model, away from their last one"
    citation = "Li et al., Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257"
    keeps = "its last model"
    work = "+ 2 forward passes"
    helps = "images; uneven labels"
    Options = MoonOptions
    needs = ("features",)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        if server_round.message == "evaluate":
            return {}
        return {"contrast": self.options.mu, "contrast-temperature": self.options.temperature}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.contrastive import ModelContrast

        return [ModelContrast()]
