"""FedProto: nodes keep their models, and share the mean representation of each class."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from typing import TYPE_CHECKING, cast

from fedapps.base.options import option
from fedapps.base.search import Range
from fedapps.strategies import BaseStrategy
from fedapps.tasks.profiles import PrivateParameters

from .base import Method, Round, Scalar
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart
    from fedapps.tasks.base import Task
    from fedapps.tasks.profiles import TaskProfiles


@dataclass(frozen=True)
class FedProtoOptions:
    """The options of FedProto."""

    weight: float = option(
        0.1,
        "weight λ of the distance to the prototypes in the loss; 0 = every node alone, if its head predicts",
        minimum=0,
        search=Range(0.01, 10, log=True),
    )
    predict: str = option(
        "head",
        "head: nodes predict by the head of their model; prototypes: by the nearest prototype, also among classes that "
        "they have no examples of",
        choices=["head", "prototypes"],
    )


class FedProto(Method):
    """Nodes train all their parameters alone, drawn to the means of the representations of each class.

    The paper's λ is 1. Here the default is a tenth of it, with which nodes with few classes of the digits are not below
    nodes that train alone.
    """

    name = "fedproto"
    line = (
        "FedProto: every node keeps its model; the mean representations of the classes are shared and draw the nodes'"
    )
    citation = (
        "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022, "
        "https://arxiv.org/abs/2105.00243"
    )
    sends = "mean features by class"
    work = "+ 1 forward pass"
    helps = "few classes on each node; slow links"
    needs = ("features", "classes")
    needs_model = True
    Options = FedProtoOptions

    def private(self, task: "TaskProfiles") -> PrivateParameters:
        """All parameters by name: the pattern ``*`` would also keep the prototypes on the node."""
        return PrivateParameters(tuple(map(escape, _names(cast("Task", task)))))

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        from fedapps.strategies import FedProto as FedProtoStrategy  # nodes do not need it

        return parts.build(FedProtoStrategy)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {"proto-weight": self.options.weight, "proto-nearest": self.options.predict == "prototypes"}

    def privacy_conflict(self, dp: str) -> str:
        from fedapps.strategies import FedProto as FedProtoStrategy

        return FedProtoStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        from fedapps.strategies import FedProto as FedProtoStrategy

        return FedProtoStrategy.robustness_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.prototypes import Prototypes

        return [Prototypes()]


@lru_cache(maxsize=32)
def _names(task: "Task") -> tuple[str, ...]:
    import torch

    from fedapps.clients.arrays import matches

    with torch.random.fork_rng(devices=[]):
        names = task.build_model().state_dict()
    return tuple(name for name in names if not matches(name, task.fixed))
