"""FedWeIT: masked shared weights, and other nodes' adaptive parameters by attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from fedapps.base.options import Around, option
from fedapps.clients.arrays import Arrays
from fedapps.clients.decomposition import DecomposedModel, Layout, Parts
from fedapps.clients.local_part import LocalPart, NodeRound
from fedapps.clients.settings import read_arrays
from fedapps.strategies import FedWeIT as FedWeITStrategy
from fedapps.strategies.wire import (
    ADAPTIVE_QUERY,
    FEDWEIT,
    FEDWEIT_ADAPTIVE,
    FEDWEIT_KEYS,
    FEDWEIT_KNOWLEDGE_PREFIX,
    FEDWEIT_MASK,
    STAGE,
)

from .apd import Decomposition, decomposed, kept_parts, numpy_arrays, weights_only
from .base import Method


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
        1e-2,
        "λ2, weight of changes to earlier stages' parameters, which l1-adaptive moves by up to l1-adaptive / (2 drift)",
        minimum=0,
        search=Around(10),
    )
    mask_share: float = option(0.7, "share of a layer's units that a node sends", above=0, maximum=1)


class FedWeit(Method):
    """Federated weighted inter-client transfer: nodes share a base and borrow what others learned in the last stage.

    As in the authors' code, the base is averaged over the nodes that sent a unit, and what can be borrowed is the last
    stage of all nodes. In the paper it is averaged over all nodes, and the other nodes' stages before can be borrowed.
    """

    name = "fedweit"
    summary = "FedWeIT: masked shared weights, and other nodes' adaptive parameters by attention"
    citation = (
        "Yoon et al., Federated Continual Learning with Weighted Inter-client Transfer, ICML 2021, "
        "https://arxiv.org/abs/2003.03196"
    )
    keeps = "parameters, masks of its stages"
    sends = "masked, + others' stages"
    good_for = "stages shared between nodes"
    message_sizes = (3.0, 1.5)  # with the adaptive parameters of two nodes, when a stage begins
    Options = FedWeitOptions
    Strategy = FedWeITStrategy
    needs_stages = True
    queries = ("adaptive",)

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        return weights_only(arrays)

    def local_parts(self) -> Sequence[LocalPart]:
        return [
            FedWeitPart(self.options.l1_adaptive, self.options.drift, self.options.l1_mask, self.options.mask_share)
        ]


@dataclass(frozen=True)
class Knowledge:
    """The adaptive parameters that other nodes learned in the last stage, to borrow (FedWeIT). Without arguments: none.

    Parameters
    ----------
    stage : int
        The stage to use the knowledge in, counted from 0.
    keys : tuple of str
        The nodes that it is from.
    adaptive : tuple of dicts of arrays
        The adaptive parameters of each of them, by weight.
    """

    stage: int = 0
    keys: tuple[str, ...] = ()
    adaptive: tuple[Arrays, ...] = ()

    @classmethod
    def read(cls, content: RecordDict) -> Self:
        """Return the knowledge in a message; none if it has no ConfigRecord ``fedweit``.

        Raises
        ------
        ValueError
            The ConfigRecord is malformed, or the model of one of its nodes is missing.
        """
        order = content.get(FEDWEIT)
        if not isinstance(order, ConfigRecord):
            return cls()
        stage, keys = order.get(STAGE), order.get(FEDWEIT_KEYS)
        if not isinstance(stage, int) or not isinstance(keys, list):
            raise ValueError(
                f"{FEDWEIT} {STAGE} = {stage!r}, {FEDWEIT_KEYS} = {keys!r}: must be an integer and a list of node keys"
            )
        adaptive = []
        for index, key in enumerate(keys):
            record = content.get(f"{FEDWEIT_KNOWLEDGE_PREFIX}{index}")
            if not isinstance(record, ArrayRecord):
                raise ValueError(
                    f"{FEDWEIT_KNOWLEDGE_PREFIX}{index}, of node {key}: must come as an ArrayRecord with {FEDWEIT}"
                )
            adaptive.append(read_arrays(f"{FEDWEIT_KNOWLEDGE_PREFIX}{index}", record))
        return cls(stage, tuple(map(str, keys)), tuple(adaptive))

    def flat(self, layout: Layout) -> Tensor:
        """Return the models as a tensor ``[K, n]``, with zeros for missing weights.

        Raises
        ------
        ValueError
            An array does not fit the model.
        """
        for key, arrays in zip(self.keys, self.adaptive, strict=True):
            for name, array in arrays.items():
                if name not in layout.weights:
                    raise ValueError(
                        f"what node {key} learned: {name!r} is no weight of the model: {', '.join(layout.weights)}"
                    )
                if array.shape != layout.weights[name]:
                    raise ValueError(
                        f"what node {key} learned: {name!r} is {list(array.shape)}, not {list(layout.weights[name])}"
                    )
        return torch.stack(
            [
                layout.flat(layout.weights, {n: torch.from_numpy(a) for n, a in arrays.items()})
                for arrays in self.adaptive
            ]
        )


@dataclass(frozen=True)
class FedWeitPart(Decomposition):
    """Train θ_t = B ⊙ σ(m_t) + A_t + Σ_k α_k K_k, where K_k is what node k learned in the stage before.

    The A_s of earlier stages are trained, so that B can change while θ_s stays the same, and their m_s are fixed
    (Equation 2; the authors' code fixes the A_s, too). A node sends the share ``mask_share`` of the units of each
    weight, those with the largest masks, and zeros for the others.

    Parameters
    ----------
    l1 : float
        Weight λ1 ≥ 0 of Σ|A_s| up to the current stage, and the absolute value up to which a number of A is reported as
        zero.
    drift : float
        Weight λ2 ≥ 0 of the squared changes of earlier stages' weights.
    l1_mask : float
        Weight λ1 ≥ 0 of Σ|m_t|.
    mask_share : float
        Share of a layer's units that a node sends, in (0, 1].
    knowledge : Knowledge
        What other nodes learned in the last stage. The node keeps it for the rest of the stage. If it is delivered
        again, α keeps its values.
    """

    trains_masks: ClassVar[bool] = False

    mask_share: float = 1.0
    knowledge: Knowledge = field(default=Knowledge(), compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the knowledge of a message. Raises ``ValueError`` as :meth:`Knowledge.read`."""
        return replace(self, knowledge=Knowledge.read(content)) if FEDWEIT in content else self

    def parts(self, layout: Layout, model: nn.Module, node_round: NodeRound) -> Parts:
        """The parts with the knowledge. Raises ``ValueError`` if it is for another stage, or does not fit the model."""
        parts, stage = super().parts(layout, model, node_round), node_round.settings.stage
        if not self.knowledge.keys:
            return parts
        if self.knowledge.stage != stage:
            raise ValueError(f"{FEDWEIT} stage = {self.knowledge.stage}: must be {stage}, as in the message's config")
        return parts.borrow(layout, self.knowledge.flat(layout))

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The base; the units that are not sent are zero."""
        sent = self._sent(decomposed(model))
        arrays = super().outgoing(model, node_round)
        return {name: array * sent[name] if name in sent else array for name, array in arrays.items()}

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return the record ``fedweit.mask``: which units are sent."""
        sent = {name: mask for name, mask in self._sent(decomposed(model)).items() if name in trained}
        return {FEDWEIT_MASK: _record(sent)} if sent else {}

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord] | None:
        """Answer the query ``adaptive`` with the record ``fedweit.adaptive`` (:meth:`adaptive`)."""
        return {FEDWEIT_ADAPTIVE: _record(self.adaptive(node_round))} if f"query.{query}" == ADAPTIVE_QUERY else None

    def adaptive(self, node_round: NodeRound) -> Arrays:
        """Return what the node learned in ``settings.stage``, its last stage: A, by weight.

        Numbers with \\|a\\| ≤ ``l1`` are zero. A is what the stage itself added, without what it borrowed, which the
        other nodes know already (Algorithm 1).

        Raises
        ------
        ValueError
            The node did not train in that stage.
        """
        stage, parts = node_round.settings.stage, kept_parts(node_round.kept)
        if parts is None or parts.stages[-1] != stage:
            last = "none" if parts is None else parts.stages[-1]
            raise ValueError(f"node {node_round.data.key} did not train in stage {stage}: its last one is {last}")
        layout = Layout.of(node_round.initial_model())
        adaptive = parts.adaptive[-1]
        # Algorithm 1: A of the last stage is sent, sparse by its L1 penalty
        kept = torch.where(adaptive.abs() > self.l1, adaptive, torch.zeros_like(adaptive))
        return numpy_arrays(layout.split(layout.weights, kept))

    def _sent(self, of: DecomposedModel) -> Arrays:
        """For every weight which of its units are sent."""
        return numpy_arrays(of.layout.by_weight(of.layout.strongest(of.parts().mask[-1], self.mask_share)))


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})
