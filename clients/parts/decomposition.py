"""Additive parameter decomposition on a node: share the base of the weights, keep what each stage adds (APD, FedWeIT).

Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition (APD), ICLR 2020,
Section 3 (https://arxiv.org/abs/1902.09432); Yoon et al., Federated Continual Learning with Weighted Inter-client
Transfer (FedWeIT), ICML 2021, Section 3.2 and Algorithm 1 (https://arxiv.org/abs/2003.03196). The server's strategy
``FedWeIT`` sends and reads the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import torch
from fedapps.clients.arrays import PREFIX, Arrays, get_arrays
from fedapps.clients.decomposition import DecomposedModel, Drift, Parts, PartsPrior
from fedapps.clients.flat_layout import Layout
from fedapps.clients.local_part import EARLIER_STAGES, EVALUATED_MODEL, PARAMETER_NAMES, PHASES, LocalPart, NodeRound
from fedapps.clients.messages import read_arrays
from fedapps.clients.penalties import QuadraticPrior
from fedapps.clients.training import Loss
from fedapps.strategies.wire import (
    ADAPTIVE_QUERY,
    FEDWEIT,
    FEDWEIT_ADAPTIVE,
    FEDWEIT_KEYS,
    FEDWEIT_KNOWLEDGE_PREFIX,
    FEDWEIT_MASK,
    STAGE,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from fedapps.base.options import option

_PARTS = "parts."
_KEPT = PREFIX + _PARTS


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
    def read(cls, content: RecordDict) -> Knowledge:
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
class Decomposition(LocalPart):
    """Train every weight as shared times masked plus stage-specific: θ_t = B ⊙ σ(m_t) + A_t (+ Σ_k α_k K_k in FedWeIT).

    Only the base B is shared; all other parts are private (:mod:`fedapps.clients.decomposition`). APD also trains the
    A_s and m_s of earlier stages, so that B can change while θ_s stays the same. FedWeIT keeps them fixed, and borrows
    the adaptive parameters that the other nodes learned in the stage before.

    If all numbers of a received unit of B are zero, no node sent it, and the node keeps its own values. Under FedWeIT
    a node sends a share ``mask_share`` of the units of each weight, those with the largest masks, and zeros for the
    others. The loss in the metrics is the task's, without penalties. Weight decay applies to B and to the parameters
    of the current stage, as in the code of FedWeIT. It does not apply to the A_s and m_s of earlier stages in APD: no
    loss depends on them, so under Adam weight decay would shrink them. An earlier stage is evaluated with its own
    parameters and the received base, a later stage with the parameters of the current one.

    Parameters
    ----------
    decomposition : "apd" or "fedweit"
    l1_adaptive, l1_mask : float
        Weights ≥ 0 of Σ|A_t| and Σ|m_t|.
    drift : float
        Weight ≥ 0 of the squared changes of earlier stages' weights.
    mask_share : float
        Share of a layer's units that a FedWeIT node sends, in (0, 1].
    sparsity : float
        Absolute value, at least 0, up to which a number of A is reported as zero.
    knowledge : Knowledge
        What other nodes learned in the last stage. The node keeps it for the rest of the stage. If it is delivered
        again, α keeps its values.
    """

    exclusive: ClassVar[frozenset[str]] = frozenset({EARLIER_STAGES, EVALUATED_MODEL, PARAMETER_NAMES, PHASES})

    decomposition: str = option("apd", "the algorithm", choices=("apd", "fedweit"))
    l1_adaptive: float = option(0.0, "weight of the absolute values of A", minimum=0)
    l1_mask: float = option(0.0, "weight of the absolute values of m", minimum=0)
    drift: float = option(0.0, "weight of the changes of earlier stages", minimum=0)
    mask_share: float = option(0.7, "share of the units that are sent", above=0, maximum=1)
    sparsity: float = option(0.0, "absolute value up to which a number counts as zero", minimum=0)
    knowledge: Knowledge = field(default=Knowledge(), compare=False)

    def read(self, config: Mapping[str, object], content: RecordDict) -> Self:
        """Return the part with the hyper-parameters and the knowledge of a message.

        Raises
        ------
        ValueError
            A value has the wrong type, the decomposition is unknown, or one of the models of other nodes is missing.
        """
        part = super().read(config, content)
        if FEDWEIT not in content:
            return part
        return replace(part, knowledge=Knowledge.read(content))

    # -- memory ----------------------------------------------------------------------------------------------------

    def remember(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        return {_PARTS + name: array for name, array in _decomposed(model).parts().arrays().items()}

    def next_stage(self, carried: Arrays, kept: Arrays) -> Arrays:
        return carried | {name: array for name, array in kept.items() if name.startswith(_KEPT)}

    # -- the model -------------------------------------------------------------------------------------------------

    def wrap(self, model: nn.Module, node_round: NodeRound) -> nn.Module:
        """Return the decomposed model.

        Raises
        ------
        ValueError
            A received parameter is one that every stage has for itself, or the knowledge does not fit.
        """
        layout, received, stage = Layout.of(model), node_round.received, node_round.settings.stage
        if own := [name for name in received if name in layout.own]:
            raise ValueError(
                f"received {', '.join(own)}: every stage has its own; only {', '.join(layout.weights)} can be shared"
            )
        before = _read(node_round.kept)
        if before is None:
            initial = layout.flat(layout.weights, dict(node_round.initial_model().named_parameters()))
            parts = Parts.first(
                layout,
                stage,
                _merged(layout, initial, model, received),
                layout.flat(layout.own, dict(model.named_parameters())),
            )
        else:
            parts = replace(before, base=_merged(layout, before.base, model, received))
            if stage != parts.stages[-1]:
                parts = parts.begin(layout, stage)
        if self.knowledge.keys:
            if self.knowledge.stage != stage:
                raise ValueError(
                    f"{FEDWEIT} stage = {self.knowledge.stage}: must be {stage}, as in the message's config"
                )
            parts = parts.borrow(layout, self.knowledge.flat(layout))
        device = node_round.device
        return DecomposedModel(model.to(device), layout.to(device), parts.to(device))

    def stage_model(self, model: nn.Module, stage: int) -> nn.Module:
        return _decomposed(model).at(stage)

    def shared_parameters(self, model: nn.Module, node_round: NodeRound) -> Mapping[str, nn.Parameter]:
        return {"base": _decomposed(model).base}

    def private(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The buffers; all parameters are in the memory of the part."""
        plain = _decomposed(model).plain
        parameters = dict(plain.named_parameters())
        names = [n for n in plain.state_dict() if n not in parameters and n not in node_round.received]
        return get_arrays(plain, names)

    def outgoing(self, model: nn.Module, node_round: NodeRound) -> Arrays:
        """The base; under FedWeIT the units that are not sent are zero."""
        decomposed, received = _decomposed(model), node_round.received
        layout = decomposed.layout
        base = _arrays(layout.split(layout.weights, decomposed.base.detach()))
        arrays = {**get_arrays(decomposed.plain, received), **{n: base[n] for n in received if n in base}}
        sent = self._sent(decomposed)
        return {name: array * sent[name] if name in sent else array for name, array in arrays.items()}

    # -- training --------------------------------------------------------------------------------------------------

    def loss(self, loss: Loss, model: nn.Module, node_round: NodeRound) -> Loss:
        return lambda model, batch: _decomposed(model).loss(batch, loss)

    def prior(
        self, shared: Mapping[str, nn.Parameter], model: nn.Module, node_round: NodeRound
    ) -> QuadraticPrior | None:
        decomposed = _decomposed(model)
        parts = decomposed.parts()
        drift = None
        if self.drift and len(parts.old):
            drift = Drift(self.drift, decomposed.layout, parts.old, node_round.settings.training.weight_decay)
        # Without A_s and m_s to train, the drift is quadratic in the base.
        fixed = drift.on_base(parts) if drift and self.decomposition == "fedweit" else None
        quadratic = fixed or QuadraticPrior({}, {})
        absolute = {"adaptive": self.l1_adaptive, "mask": self.l1_mask}
        return PartsPrior(
            quadratic.precision,
            quadratic.linear,
            {name: weight for name, weight in absolute.items() if weight},
            None if fixed else drift,
        )

    # -- the reply -------------------------------------------------------------------------------------------------

    def records(self, trained: Arrays, model: nn.Module, node_round: NodeRound) -> Mapping[str, ArrayRecord]:
        """Return the record ``fedweit.mask`` under FedWeIT: which units are sent."""
        sent = {name: mask for name, mask in self._sent(_decomposed(model)).items() if name in trained}
        return {FEDWEIT_MASK: _record(sent)} if sent else {}

    def answer(self, query: str, node_round: NodeRound) -> Mapping[str, ArrayRecord] | None:
        """Answer the query ``adaptive`` with the record ``fedweit.adaptive`` (:meth:`adaptive`)."""
        return {FEDWEIT_ADAPTIVE: _record(self.adaptive(node_round))} if f"query.{query}" == ADAPTIVE_QUERY else None

    def adaptive(self, node_round: NodeRound) -> Arrays:
        """Return what the node learned in ``settings.stage``, its last stage: A, by weight.

        Numbers with \\|a\\| ≤ ``sparsity`` are zero. A is what the stage itself added, without what it borrowed, which
        the other nodes know already (Algorithm 1 of FedWeIT).

        Raises
        ------
        ValueError
            The node did not train in that stage.
        """
        stage, parts = node_round.settings.stage, _read(node_round.kept)
        if parts is None or parts.stages[-1] != stage:
            last = "none" if parts is None else parts.stages[-1]
            raise ValueError(f"node {node_round.data.key} did not train in stage {stage}: its last one is {last}")
        layout = Layout.of(node_round.initial_model())
        adaptive = parts.adaptive[-1]
        kept = torch.where(adaptive.abs() > self.sparsity, adaptive, torch.zeros_like(adaptive))
        return _arrays(layout.split(layout.weights, kept))

    def trainable_parameters(self, model: nn.Module, stages: int) -> int:
        """The base, A, m and the other parameters of all stages, and α of all stages but the first.

        For the network of Elastic Transfer APD trains 7,424 + 4 (7,424 + 257 + 257) = 39,176, as in its Table 1.
        FedWeIT has 96 more there, which are 8 layers of 3 nodes in 4 stages; α is here of 9 layers, in 3 stages: 81.
        """
        parts = _decomposed(model).parts()
        per_stage = parts.adaptive[0].numel() + parts.mask[0].numel() + parts.own[0].numel()
        return parts.base.numel() + stages * per_stage + (stages - 1) * parts.alpha.numel()

    def static_parameters(self, shared: Mapping[str, nn.Parameter], memory: Arrays) -> int:
        """The weights that earlier stages had, and the knowledge."""
        return memory[_PARTS + "old"].size + memory[_PARTS + "knowledge"].size

    def bytes_on_disk(self, model_bytes: int, version_bytes: int, stages: int) -> int:
        return version_bytes * (stages - 1)

    def _sent(self, decomposed: DecomposedModel) -> Arrays:
        """For every weight which of its units are sent under FedWeIT; nothing for APD, which sends all."""
        if self.decomposition != "fedweit":
            return {}
        layout = decomposed.layout
        return _arrays(layout.by_weight(layout.strongest(decomposed.parts().mask[-1], self.mask_share)))


def _decomposed(model: nn.Module) -> DecomposedModel:
    assert isinstance(model, DecomposedModel)
    return model


def _read(kept: Arrays) -> Parts | None:
    return Parts.read({name.removeprefix(_KEPT): a for name, a in kept.items() if name.startswith(_KEPT)})


def _merged(layout: Layout, own: Tensor, plain: nn.Module, received: Arrays) -> Tensor:
    """The base ``[n]``: the received units, or the node's own where no node sent them."""
    came = layout.flat(layout.weights, dict(plain.named_parameters()))
    sizes = torch.zeros(len(layout.layer_of_unit), dtype=came.dtype).index_add_(0, layout.unit_of, came.abs())
    there = layout.among(received) & (sizes > 0).index_select(0, layout.unit_of)
    return torch.where(there, came, own)


def _arrays(named: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})
