"""Ditto: FedAvg, and on each node a personal model that is held near the shared one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedapps.base.options import option
from fedapps.base.search import Range

from .base import Method, Round, Scalar

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class DittoOptions:
    """The options of Ditto."""

    lambda_: float = option(
        1.0,
        "weight λ of the distance of a personal model to the received one; 0 = local",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )


class Ditto(Method):
    """Nodes train the shared model as under FedAvg, and beside it a personal model that they keep and evaluate.

    λ = 1 is that of the authors' published runs (https://github.com/litian96/ditto).
    """

    name = "ditto"
    line = "Ditto: FedAvg, and each node keeps a personal model that is held near the shared one"
    citation = (
        "Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, "
        "https://arxiv.org/abs/2012.04221"
    )
    keeps = "personal model"
    work = "2 models"
    helps = "uneven data; a few false nodes"
    Options = DittoOptions

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"ditto-lambda": self.options.lambda_}

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.ditto import RegularisedPersonal

        return [RegularisedPersonal()]
