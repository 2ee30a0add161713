"""FedWeIT: masked shared weights, and other nodes' adaptive parameters by attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord

from fedapps.base.options import option
from fedapps.base.search import Around
from fedapps.strategies import BaseStrategy
from fedapps.strategies import FedWeIT as FedWeITStrategy

from .base import Method, Round, Scalar
from .continual import weights_only
from .strategy_parts import StrategyParts

if TYPE_CHECKING:
    from fedapps.clients.local_part import LocalPart


@dataclass(frozen=True)
class FedWeitOptions:
    """The options of FedWeIT."""

    l1_mask: float = option(1e-2, "λ1 on masks", minimum=0, search=Around(10))
    l1_adaptive: float = option(
        1e-4,
        "λ1 on adaptive parameters, and the absolute value up to which they are not sent",
        minimum=0,
        search=Around(10),
    )
    drift: float = option(
        1e-4,
        "λ2, weight of changes to earlier stages' parameters",
        minimum=0,
        search=Around(10),
    )
    mask_share: float = option(0.7, "share of a layer's units that a node sends", above=0, maximum=1)


class FedWeit(Method):
    """Federated weighted inter-client transfer: nodes share a base and borrow what others learned in the last stage."""

    name = "fedweit"
    line = "FedWeIT: masked shared weights, and other nodes' adaptive parameters by attention"
    citation = (
        "Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, "
        "https://arxiv.org/abs/2003.03196"
    )
    keeps = "parameters, masks of its stages"
    sends = "masked, + others' stages"
    helps = "stages shared between nodes"
    copies = (3.0, 1.5)  # with the adaptive parameters of two nodes, when a stage begins
    Options = FedWeitOptions
    needs_stages = True
    queries = ("adaptive",)

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        return weights_only(arrays)

    def strategy(self, parts: StrategyParts) -> BaseStrategy:
        return parts.build(FedWeITStrategy)

    def round_config(self, server_round: Round) -> Mapping[str, Scalar]:
        return {
            "decomposition": "fedweit",
            "l1-adaptive": self.options.l1_adaptive,
            "l1-mask": self.options.l1_mask,
            "drift": self.options.drift,
            "mask-share": self.options.mask_share,
            "sparsity": self.options.l1_adaptive,
        }

    def privacy_conflict(self, dp: str) -> str:
        return FedWeITStrategy.privacy_gap

    def robustness_conflict(self) -> str:
        return FedWeITStrategy.robustness_gap

    def compression_conflict(self) -> str:
        return FedWeITStrategy.compression_gap

    def local_parts(self) -> "Sequence[LocalPart]":
        from fedapps.clients.parts.decomposition import Decomposition

        return [Decomposition()]
