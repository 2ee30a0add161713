"""APD: each stage adds sparse parameters to shared ones.

Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition, ICLR 2020, Section 3,
https://arxiv.org/abs/1902.09432.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedapps.base.options import Around, option, under_prefix
from fedapps.clients.arrays import PREFIX, Arrays, get_arrays
from fedapps.clients.decomposition import DecomposedModel, Drift, Layout, Parts, PartsPrior
from fedapps.clients.local_part import EARLIER_STAGES, EVALUATED_MODEL, PARAMETER_NAMES, PHASES, LocalPart, NodeRound
from fedapps.clients.training import Loss

from .continual import ContinualMethod, FederationOptions

_PARTS = "parts."
_KEPT = PREFIX + _PARTS


@dataclass(frozen=True)
class ApdOptions(FederationOptions):
    """The options of APD."""

    l1: float = option(1e-4, "weight of the adaptive parameters' absolute values", minimum=0, search=Around(10))
    drift: float = option(
        1e-2,
        "weight of changes to earlier stages' parameters, which l1 moves by up to l1 / (2 drift)",
        minimum=0,
        search=Around(10),
    )


class Apd(ContinualMethod):
    """Additive parameter decomposition; the shared base is averaged, or stays on the node."""

    name = "apd"
    summary = "APD: each stage adds sparse parameters to shared ones"
    citation = (
        "Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition, ICLR 2020, "
        "https://arxiv.org/abs/1902.09432"
    )
    keeps = "parameters of its stages"
    good_for = "stages with little forgetting"
    aliases: ClassVar = {"fedavg-apd": "apd(mu=0)", "local-apd": "apd(local=true)", "fedprox-apd": "apd(mu=0.05)"}
    Options = ApdOptions

    def initial_arrays(self, arrays: ArrayRecord) -> ArrayRecord:
        return weights_only(arrays)

    def local_parts(self) -> Sequence[LocalPart]:
        return [Decomposition(self.options.l1, self.options.drift), *self.proximal()]


def weights_only(arrays: ArrayRecord) -> ArrayRecord:
    """The arrays of two or more dimensions; all others are specific to a stage and stay on the node."""
    return ArrayRecord({name: array for name, array in arrays.items() if len(array.shape) > 1})


@dataclass(frozen=True)
class Decomposition(LocalPart):
    """Train every weight as shared times masked plus stage-specific: θ_t = B ⊙ σ(m_t) + A_t.

    Only the base B is shared; all other parts are private (:mod:`fedapps.clients.decomposition`). The A_s and m_s of
    earlier stages are trained, too, so that B can change, also by averaging, while θ_s stays the same.

    If all numbers of a received unit of B are zero, no node sent it, and the node keeps its own values. The loss in the
    metrics is the task's, without penalties. Weight decay applies to B and to the parameters of the current stage, not
    to the A_s and m_s of earlier stages, which no loss depends on. An earlier stage is evaluated with its own
    parameters and the received base, a later stage with the parameters of the current one.

    Parameters
    ----------
    l1 : float
        Weight ≥ 0 of Σ|A_t|, and of the Σ|A_s| of earlier stages.
    drift : float
        Weight ≥ 0 of the squared changes of earlier stages' weights.
    l1_mask : float
        Weight ≥ 0 of Σ|m_t|.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES, EVALUATED_MODEL, PARAMETER_NAMES, PHASES})
    #: Whether the m_s of earlier stages are trained.
    trains_masks: ClassVar[bool] = True

    l1: float
    drift: float
    l1_mask: float = 0.0

    # -- memory ----------------------------------------------------------------------------------------------------

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {_PARTS + name: array for name, array in decomposed(model).parts().arrays().items()}

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        return carried | {name: array for name, array in kept.items() if name.startswith(_KEPT)}

    # -- the model -------------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        """Return the decomposed model.

        Raises
        ------
        ValueError
            A received parameter is one that every stage has for itself.
        """
        layout, device = Layout.of(model), node_round.device
        parts = self.parts(layout, model, node_round)
        return DecomposedModel(model.to(device), layout.to(device), parts.to(device))

    def parts(self, layout: Layout, model: nn.Module, node_round: NodeRound) -> Parts:
        """The initial parts of a round: those after the previous round, but with the received base."""
        received, stage = node_round.received, node_round.settings.stage
        if own := [name for name in received if name in layout.own]:
            raise ValueError(
                f"received {', '.join(own)}: every stage has its own; only {', '.join(layout.weights)} can be shared"
            )
        before = kept_parts(node_round.kept)
        if before is None:
            initial = layout.flat(layout.weights, dict(node_round.initial_model().named_parameters()))
            base = _merged(layout, initial, model, received)
            return Parts.first(layout, stage, base, layout.flat(layout.own, dict(model.named_parameters())))
        base = _merged(layout, before.base, model, received)
        return replace(before, base=base) if stage == before.stages[-1] else before.begin(layout, stage, base)

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        return decomposed(model).at(stage)

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        return {"base": decomposed(model).base}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The buffers; all parameters are in the memory of the part."""
        plain = decomposed(model).plain
        parameters = dict(plain.named_parameters())
        names = [n for n in plain.state_dict() if n not in parameters and n not in node_round.received]
        return get_arrays(plain, names)

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The base."""
        received, of = node_round.received, decomposed(model)
        base = numpy_arrays(of.layout.split(of.layout.weights, of.base.detach()))
        return {**get_arrays(of.plain, received), **{n: base[n] for n in received if n in base}}

    # -- training --------------------------------------------------------------------------------------------------

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        return lambda model, batch: decomposed(model).loss(batch, loss)

    def prior(self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound) -> PartsPrior:
        of = decomposed(model)
        drift = None
        if (self.drift or self.l1) and len(old := of.parts().old):
            drift = Drift(self.drift, of.layout, old, self.l1, self.trains_masks)
        absolute = {"adaptive": self.l1, "mask": self.l1_mask}
        return PartsPrior({}, {}, {name: weight for name, weight in absolute.items() if weight}, drift)

    # -- the reply -------------------------------------------------------------------------------------------------

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        """The base, A, m and the other parameters of all stages, and α of all stages but the first.

        For the network of Elastic Transfer APD trains 7,424 + 4 (7,424 + 257 + 257) = 39,176, as in its Table 1.
        FedWeIT has 96 more there, which are 8 layers of 3 nodes in 4 stages; α is here of 9 layers, in 3 stages: 81.
        """
        parts = decomposed(model).parts()
        per_stage = parts.adaptive[0].numel() + parts.mask[0].numel() + parts.own[0].numel()
        return parts.base.numel() + stages * per_stage + (stages - 1) * parts.alpha.numel()

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        """The weights that earlier stages had, and the knowledge."""
        return memory[_PARTS + "old"].size + memory[_PARTS + "knowledge"].size

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return version_bytes * (stages - 1)


def decomposed(model: nn.Module) -> DecomposedModel:
    """The model of a round as the one that :class:`Decomposition` made of it."""
    assert isinstance(model, DecomposedModel)
    return model


def kept_parts(kept: Arrays) -> Parts | None:
    """The parts that the last round left; ``None`` before the first."""
    return Parts.read(under_prefix(_KEPT, kept))


def numpy_arrays(named: Mapping[str, Tensor]) -> Arrays:
    """Copies of named tensors as arrays on the CPU."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}


def _merged(layout: Layout, own: Tensor, plain: nn.Module, received: Arrays) -> Tensor:
    """The base ``[n]``: the received units, or the node's own where no node sent them."""
    base = layout.flat(layout.weights, dict(plain.named_parameters()))
    sizes = torch.zeros(len(layout.layer_of_unit), dtype=base.dtype).index_add_(0, layout.unit_of, base.abs())
    sent = layout.among(received) & (sizes > 0).index_select(0, layout.unit_of)
    return torch.where(sent, base, own)
