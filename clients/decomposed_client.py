"""A node that shares the base of a decomposed model and keeps what each stage adds: APD and FedWeIT.

Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition (APD), ICLR 2020,
Section 3 (https://arxiv.org/abs/1902.09432); Yoon et al., Federated Continual Learning with Weighted Inter-client
Transfer (FedWeIT), ICML 2021, Section 3.2 and Algorithm 1 (https://arxiv.org/abs/2003.03196). The records are those
of the server's strategy ``FedWeIT``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor, nn

from tasks.base import Batch, Metrics, NodeData

from .base import FederatedClient, Rates, RoundResult
from .decomposed_model import DecomposedModel, Drift, PartsPrior
from .decomposition import Layout, Parts
from .named_arrays import Arrays, get_arrays
from .node_memory import PREFIX, STAGE
from .penalties import QuadraticPrior, sum_of
from .round_settings import RoundSettings

ORDER = "fedweit"
KNOWLEDGE = "fedweit.knowledge."
MASK = "fedweit.mask"
ADAPTIVE = "fedweit.adaptive"
_PARTS = "parts."
_KEPT = PREFIX + _PARTS
_STAGE = PREFIX + STAGE


@dataclass(frozen=True)
class Knowledge:
    """What a TRAIN message brings of the last stage: the adaptive parameters of every node in ``keys``. Empty: none."""

    stage: int = 0
    keys: tuple[str, ...] = ()
    adaptive: tuple[Arrays, ...] = ()

    @classmethod
    def read(cls, content: RecordDict) -> Knowledge:
        """From a message's records; a message without the ConfigRecord ``fedweit`` brings none.

        Raises ``ValueError`` when one of the models that it announces is missing.
        """
        order = content.get(ORDER)
        if not isinstance(order, ConfigRecord):
            return cls()
        stage, keys = order.get("stage"), order.get("keys")
        if not isinstance(stage, int) or not isinstance(keys, list):
            raise ValueError(f"{ORDER} stage = {stage!r}, keys = {keys!r}: must be an integer and a list of node keys")
        adaptive = []
        for index, key in enumerate(keys):
            record = content.get(f"{KNOWLEDGE}{index}")
            if not isinstance(record, ArrayRecord):
                raise ValueError(f"{KNOWLEDGE}{index}, of node {key}: must come as an ArrayRecord with {ORDER}")
            adaptive.append({name: array.numpy() for name, array in record.items()})
        return cls(stage, tuple(map(str, keys)), tuple(adaptive))

    def flat(self, layout: Layout) -> Tensor:
        """``[K, n]``; zeros for weights of which nothing came.

        Raises ``ValueError`` for what does not fit the model.
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


class DecomposedClient(FederatedClient):
    """A :class:`FederatedClient` under ``settings.decomposition`` "apd" or "fedweit": make one per message.

    The model of stage t is θ_t = B ⊙ σ(m_t) + A_t, under FedWeIT + Σ_k α_k K_k (:mod:`clients.decomposition`). Only
    the base B of the weights travels; all else is private. APD goes on training the A_s and m_s of earlier stages,
    which lets B move while θ_s stays; FedWeIT does not, and borrows from what others learned in the stage before.

    A received unit of B that is zero throughout was sent by nobody: the node's own stays. FedWeIT sends the units with
    the largest mask of each weight, ``settings.mask_share`` of them, and zeros for the others. FedProx
    (``settings.proximal``) holds B alone. The loss that a reply tells is the task's, without any penalty.

    Weight decay acts on the base and on the present stage, as in the code of FedWeIT; not on the A_s and m_s of APD,
    where nothing but the drift works against it and Adam scales both up to full steps.

    Earlier stages are evaluated with their own parameters on the base as received, stages not yet met with the
    present one's.

    Parameters
    ----------
    knowledge : Knowledge
        From :meth:`Knowledge.read`. It is kept for the rest of the stage; delivered once more, α goes on.
    other parameters
        Those of :class:`FederatedClient`.
    """

    def __init__(self, *parent: Any, knowledge: Knowledge | None = None, **named: Any) -> None:
        super().__init__(*parent, **named)
        self.knowledge = knowledge or Knowledge()

    def train_round(self, received: Arrays, settings: RoundSettings) -> RoundResult:
        """As in the parent; under FedWeIT the units that are not sent are zero.

        Raises ``ValueError`` for settings that do not go with a decomposition, and for parameters received that each
        stage has for itself.
        """
        if settings.decomposition == "none":
            raise ValueError("decomposition = 'none': must be 'apd' or 'fedweit' for a node with stage-own parameters")
        if settings.ewc or settings.l2_transfer:
            raise ValueError(
                f"ewc = {settings.ewc}, l2-transfer = {settings.l2_transfer}: must be 0 with decomposition = "
                f"{settings.decomposition!r}, which holds earlier stages by drift = {settings.drift}"
            )
        reply = super().train_round(received, settings)
        sent = self._sent(settings)
        return replace(reply, arrays={n: a * sent[n] if n in sent else a for n, a in reply.arrays.items()})

    def publish(self, reply: RoundResult, settings: RoundSettings) -> dict[str, ArrayRecord]:
        """Under FedWeIT which units ``train_round`` sent: the record ``fedweit.mask``."""
        sent = {name: mask for name, mask in self._sent(settings).items() if name in reply.arrays}
        return {MASK: _record(sent)} if sent else {}

    def adaptive(self, settings: RoundSettings) -> Arrays:
        """What the node learned in ``settings.stage``, its last one before ``settings.server_round``: A, by weight.

        Numbers with \\|a\\| ≤ ``settings.sparsity`` are zero. A is what the stage itself added: what it borrowed, which
        the others know already, is not in it, as in Algorithm 1 of FedWeIT. Raises ``ValueError`` when the node did
        not train in that stage.
        """
        parts = self._parts(settings.server_round)
        if parts is None or parts.stages[-1] != settings.stage:
            last = "none" if parts is None else parts.stages[-1]
            raise ValueError(f"node {self.data.key} did not train in stage {settings.stage}: its last one is {last}")
        layout = Layout.of(self._initial_model())
        adaptive = parts.adaptive[-1]
        kept = torch.where(adaptive.abs() > settings.sparsity, adaptive, torch.zeros_like(adaptive))
        return _arrays(layout.split(layout.weights, kept))

    # -- what the parent asks --------------------------------------------------------------------------------

    def _model(self, received: Arrays, kept: Arrays) -> nn.Module:
        plain = super()._model(received, kept).cpu()
        layout = Layout.of(plain)
        if own := [name for name in received if name in layout.own]:
            raise ValueError(
                f"received {', '.join(own)}: every stage has its own; only {', '.join(layout.weights)} can be shared"
            )
        stage = int(kept.get(_STAGE, np.zeros(())))
        before = _read(kept)
        if before is None:
            initial = layout.flat(layout.weights, dict(self._initial_model().named_parameters()))
            parts = Parts.first(
                layout,
                stage,
                _merged(layout, initial, plain, received),
                layout.flat(layout.own, dict(plain.named_parameters())),
            )
        else:
            parts = replace(before, base=_merged(layout, before.base, plain, received))
            if stage != parts.stages[-1]:
                parts = parts.begin(layout, stage)
        if self.knowledge.keys:
            if self.knowledge.stage != stage:
                raise ValueError(f"{ORDER} stage = {self.knowledge.stage}: must be {stage}, as in the message's config")
            parts = parts.borrow(layout, self.knowledge.flat(layout))
        device = self.device
        return DecomposedModel(plain.to(device), layout.to(device), parts.to(device), self.task.loss)

    def _loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return _decomposed(model).loss(batch)

    def _prior(
        self, model: nn.Module, received: Arrays, kept: Arrays, settings: RoundSettings
    ) -> QuadraticPrior | None:
        decomposed = _decomposed(model)
        parts = decomposed.parts()
        drift = None
        if settings.drift and len(parts.old):
            drift = Drift(settings.drift, decomposed.layout, parts.old, settings.weight_decay)
        proximal = QuadraticPrior.around({"base": parts.base}, settings.proximal) if settings.proximal else None
        # Without A_s and m_s to train, the drift is quadratic in the base.
        fixed = drift.on_base(parts) if drift and settings.decomposition == "fedweit" else None
        quadratic = sum_of([proximal, fixed]) or QuadraticPrior({}, {})
        absolute = {"adaptive": settings.l1_adaptive, "mask": settings.l1_mask}
        return PartsPrior(
            quadratic.precision,
            quadratic.linear,
            {name: weight for name, weight in absolute.items() if weight},
            None if fixed else drift,
        )

    def _remember(self, model: nn.Module, kept: Arrays, data: NodeData, settings: RoundSettings) -> Arrays:
        return {_PARTS + name: array for name, array in _decomposed(model).parts().arrays().items()}

    def _private(self, model: nn.Module, received: Arrays) -> Arrays:
        """The buffers; all parameters are in the parts that the node remembers."""
        plain = _decomposed(model).plain
        parameters = dict(plain.named_parameters())
        return get_arrays(plain, [n for n in plain.state_dict() if n not in parameters and n not in received])

    def _outgoing(self, model: nn.Module, received: Arrays) -> Arrays:
        decomposed = _decomposed(model)
        layout = decomposed.layout
        base = _arrays(layout.split(layout.weights, decomposed.base.detach()))
        return {**get_arrays(decomposed.plain, received), **{n: base[n] for n in received if n in base}}

    def _for_stage(self, model: nn.Module, stage: int, settings: RoundSettings) -> nn.Module:
        return _decomposed(model).at(stage)

    def _parameters(self, model: nn.Module, received: Arrays, memory: Arrays, settings: RoundSettings) -> Metrics:
        """Trained: the base, A, m and own parameters of all stages, α of all but the first. Held fixed: the weights
        that earlier stages had, the knowledge, FedProx's copy of the base.

        For the network of Elastic Transfer APD trains 7,424 + 4 (7,424 + 257 + 257) = 39,176, as in its Table 1.
        FedWeIT has 96 more there, which are 8 layers of 3 nodes in 4 stages; α is here of 9 layers, in 3 stages: 81.
        """
        parts = _decomposed(model).parts()
        stages = max(len(self.data.stages), 1)
        per_stage = parts.adaptive[0].numel() + parts.mask[0].numel() + parts.own[0].numel()
        trained = parts.base.numel() + stages * per_stage + (stages - 1) * parts.alpha.numel()
        held = parts.old.numel() + parts.knowledge.numel() + parts.base.numel() * (settings.proximal > 0)
        return {"trainable_parameters": float(trained), "static_parameters": float(held)}

    def _kept(self, before: int, settings: RoundSettings) -> Arrays:
        """As in the parent, with the present stage, by which :meth:`_model` knows when one begins."""
        return {**super()._kept(before, settings), _STAGE: np.array(settings.stage)}

    def _next_stage(self, kept: Arrays, settings: RoundSettings) -> Arrays:
        parts = {name: array for name, array in kept.items() if name.startswith(_KEPT)}
        return super()._next_stage(kept, settings) | parts

    def _validation_loss(self, model: nn.Module, data: NodeData) -> float:
        decomposed = _decomposed(model)
        return super()._validation_loss(decomposed.at(decomposed.begun_with.stages[-1]), data)

    def _personalise(self, model: nn.Module, data: NodeData, settings: RoundSettings, rates: Rates | None) -> None:
        raise ValueError(
            f"personalise = True: must be false with decomposition = {settings.decomposition!r}, whose stages have "
            "parameters of their own"
        )

    # -- the machinery ---------------------------------------------------------------------------------------

    def _parts(self, before: int) -> Parts | None:
        return _read(self.private.load(before) or {})

    def _sent(self, settings: RoundSettings) -> Arrays:
        """After a round of FedWeIT, for every weight which of its units are sent; nothing for APD."""
        parts = self._parts(settings.server_round + 1)
        if settings.decomposition != "fedweit" or parts is None:
            return {}
        layout = Layout.of(self._initial_model())
        return _arrays(layout.by_weight(layout.strongest(parts.mask[-1], settings.mask_share)))


def _decomposed(model: nn.Module) -> DecomposedModel:
    assert isinstance(model, DecomposedModel)
    return model


def _read(kept: Arrays) -> Parts | None:
    return Parts.read({name.removeprefix(_KEPT): array for name, array in kept.items() if name.startswith(_KEPT)})


def _merged(layout: Layout, own: Tensor, plain: nn.Module, received: Arrays) -> Tensor:
    """The base ``[n]``: the units received where anybody sent them, the node's own elsewhere."""
    came = layout.flat(layout.weights, dict(plain.named_parameters()))
    sizes = torch.zeros(len(layout.layer_of_unit), dtype=came.dtype).index_add_(0, layout.unit_of, came.abs())
    there = layout.among(received) & (sizes > 0).index_select(0, layout.unit_of)
    return torch.where(there, came, own)


def _arrays(named: dict[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in named.items()}


def _record(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})
