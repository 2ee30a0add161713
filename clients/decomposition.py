"""Additive decomposition of a model into shared weights, masks of them, and weights of each stage.

Yoon et al., Scalable and Order-robust Continual Learning with Additive Parameter Decomposition (APD), ICLR 2020,
Section 3 (https://arxiv.org/abs/1902.09432); Yoon et al., Federated Continual Learning with Weighted Inter-client
Transfer (FedWeIT), ICML 2021, Section 3.2 (https://arxiv.org/abs/2003.03196).

In stage t every parameter of two or more dimensions, a *weight*, is θ_t = B ⊙ σ(m_t) + A_t + Σ_k α_k K_k: a base B, a
mask m_t of one number per output unit, adaptive parameters A_t, and the adaptive parameters K_k of others, with one
α per weight tensor and k. All other parameters, such as biases, are the stage's own.

All parts are flat vectors over all weights together: n numbers in the weights, u output units, o numbers of the
stage's own, L weight tensors. The number of operations does not depend on the number of layers, because networks of
small layers train in the time of a few dozen operations.

The penalties on the parts are

    λ_A Σ_{s≤t} |A_s| + λ_m Σ|m_t| + λ_d Σ_{s<t} ‖B ⊙ σ(m_s) + A_s − θ_s‖²,

where θ_s are the weights of stage s when the last stage ended, with the base that the node had trained. APD trains the
A_s and m_s of earlier stages against them, FedWeIT the A_s alone (its Equation 2). As with every prior of a node only
their gradient is needed, which is added to that of the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import ceil, log, prod

import numpy as np
import torch
from fedapps.tasks.base import Batch
from torch import Tensor, nn
from torch.func import functional_call

from .arrays import Arrays, load_arrays
from .penalties import QuadraticPrior
from .training import Loss


@dataclass(frozen=True)
class Layout:
    """Where the parameters of a model lie in the flat vectors.

    ``weights`` and ``own`` map names to shapes, ``axes`` each weight to the axis of its output units; ``unit_of``
    ``[n]`` and ``layer_of`` ``[n]`` say to which unit and weight tensor a number belongs, ``layer_of_unit`` ``[u]``
    to which weight tensor a unit does.
    """

    weights: Mapping[str, torch.Size]
    own: Mapping[str, torch.Size]
    axes: Mapping[str, int]
    unit_of: Tensor
    layer_of: Tensor
    layer_of_unit: Tensor

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Raises ``ValueError`` for a model without weights, or with floating-point numbers of several types."""
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        weights = {name: p.shape for name, p in named.items() if p.ndim >= 2}
        dtypes = {p.dtype for p in named.values()}
        if not weights or len(dtypes) > 1:
            raise ValueError(
                f"the model has {len(weights)} parameters of two or more dimensions, of the types "
                f"{', '.join(sorted(map(str, dtypes)))}: a decomposition needs at least one, and all of one type"
            )
        axes = unit_axes(model)
        units, layers, layers_of_units, first = [], [], [], 0
        for layer, (name, shape) in enumerate(weights.items()):
            count = shape[axes[name]]
            numbers = (first + torch.arange(count)).view(_along(shape, axes[name]))
            units.append(numbers.expand(shape).reshape(-1))
            layers.append(torch.full((prod(shape),), layer))
            layers_of_units.append(torch.full((count,), layer))
            first += count
        undivided = {name: p.shape for name, p in named.items() if p.ndim < 2}
        return cls(weights, undivided, axes, torch.cat(units), torch.cat(layers), torch.cat(layers_of_units))

    def flat(self, shapes: Mapping[str, torch.Size], named: Mapping[str, Tensor]) -> Tensor:
        """The tensors of the names in ``shapes``, one after the other, without gradient; zeros for those missing."""
        parts = [
            named[name].detach().reshape(-1) if name in named else torch.zeros(prod(s)) for name, s in shapes.items()
        ]
        return torch.cat(parts) if parts else torch.zeros(0)

    def split(self, shapes: Mapping[str, torch.Size], flat: Tensor) -> dict[str, Tensor]:
        """The way back, as views."""
        pieces = flat.split([prod(shape) for shape in shapes.values()]) if shapes else ()
        return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}

    def by_weight(self, units: Tensor) -> dict[str, Tensor]:
        """What every unit has, ``[u]``, as tensors that broadcast to the weights: ``[8, 1]`` for an ``[8, 3]`` one."""
        along = {name: _along(shape, self.axes[name]) for name, shape in self.weights.items()}
        pieces = units.split([prod(shape) for shape in along.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(along.items(), pieces, strict=True)}

    def among(self, names: Iterable[str]) -> Tensor:
        """Booleans ``[n]``: which numbers are of the weights named."""
        wanted = set(names)
        return torch.tensor([name in wanted for name in self.weights])[self.layer_of.cpu()].to(self.layer_of.device)

    def strongest(self, mask: Tensor, share: float) -> Tensor:
        """Booleans ``[u]``: of every weight tensor the ``share`` of its units, rounded up, with the largest \\|m\\|.

        Raises ``ValueError`` for a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise ValueError(f"mask-share = {share}: must be above 0 and at most 1")
        strongest = torch.zeros_like(mask, dtype=torch.bool)
        for layer in range(len(self.weights)):
            units = torch.nonzero(self.layer_of_unit == layer).flatten()
            # Rounding must not add a unit to an exact share; ties go to the first, in every version of torch.
            count = ceil(share * len(units) - 1e-9)
            order = mask[units].abs().sort(descending=True, stable=True).indices
            strongest[units[order[:count]]] = True
        return strongest

    def to(self, device: torch.device) -> Layout:
        """The same on a device."""
        indices = {name: getattr(self, name).to(device) for name in ("unit_of", "layer_of", "layer_of_unit")}
        return replace(self, **indices)


def _along(shape: torch.Size, axis: int) -> list[int]:
    return [size if index == axis else 1 for index, size in enumerate(shape)]


def unit_axes(model: nn.Module) -> dict[str, int]:
    """The axis of the output units of every weight.

    It is the one as long as the bias beside the weight (``layer.bias`` of ``layer.weight``). Where several are, the
    axis of the model's other modules of the same class decides; where nothing does, it is 0, torch's convention.
    """
    axes: dict[str, int] = {}
    unclear: dict[str, type] = {}
    known: dict[type, Counter[int]] = {}
    for prefix, module in model.named_modules():
        for short, parameter in module.named_parameters(prefix, recurse=False):
            if parameter.ndim < 2:
                continue
            bias = getattr(module, "bias", None)
            length = len(bias) if isinstance(bias, Tensor) and bias.ndim == 1 else None
            fitting = [axis for axis, size in enumerate(parameter.shape) if size == length]
            if len(fitting) == 1:
                axes[short] = fitting[0]
                known.setdefault(type(module), Counter())[fitting[0]] += 1
            else:
                unclear[short] = type(module)
    for name, kind in unclear.items():
        axes[name] = known[kind].most_common(1)[0][0] if kind in known else 0
    return axes


#: σ(m) = 2/3, so that B ⊙ σ(m) + B/3 = B: a stage begins at the base as it is.
INITIAL_MASK = log(2.0)
INITIAL_ADAPTIVE = 1 / 3


@dataclass(frozen=True)
class Parts:
    """The parts of a model after ``k`` stages, as flat tensors.

    ``stages`` are the numbers of the stages met, the current one last, and ``adaptive`` ``[k, n]``, ``mask`` ``[k, u]``
    and ``own`` ``[k, o]`` theirs; ``base`` ``[n]`` is of all. ``old`` ``[k-1, n]`` is what the weights of earlier
    stages were when the last one ended. ``knowledge`` ``[K, n]`` is borrowed with the weights ``alpha`` ``[K, L]``.
    """

    stages: tuple[int, ...]
    base: Tensor
    adaptive: Tensor
    mask: Tensor
    own: Tensor
    old: Tensor
    knowledge: Tensor
    alpha: Tensor

    @classmethod
    def first(cls, layout: Layout, stage: int, base: Tensor, own: Tensor) -> Parts:
        """The parts of a model that meets its first stage."""
        n, layers = len(base), len(layout.weights)
        mask = base.new_full((1, len(layout.layer_of_unit)), INITIAL_MASK)
        nothing = base.new_zeros
        adaptive = INITIAL_ADAPTIVE * base[None]
        return cls((stage,), base, adaptive, mask, own[None], nothing(0, n), nothing(0, n), nothing(0, layers))

    def begin(self, layout: Layout, stage: int, base: Tensor) -> Parts:
        """The parts when another stage begins with a new ``base`` B; earlier stages are held at what they were before.

        What was borrowed in the last stage stays with it, as part of its adaptive parameters. The new stage has those
        of B/3, the initial mask and the last stage's own parameters.
        """
        lent = borrowed(layout, self.alpha, self.knowledge)
        adaptive = torch.cat([self.adaptive[:-1], self.adaptive[-1:] + lent])
        fresh = Parts.first(layout, stage, base, self.own[-1])
        return replace(
            fresh,
            stages=(*self.stages, stage),
            adaptive=torch.cat([adaptive, fresh.adaptive]),
            mask=torch.cat([self.mask, fresh.mask]),
            own=torch.cat([self.own, fresh.own]),
            old=composed(layout, self.base, self.mask, adaptive),
        )

    def borrow(self, layout: Layout, knowledge: Tensor) -> Parts:
        """With knowledge ``[K, n]`` to borrow from: at first nothing; as before if it is delivered once more."""
        again = self.alpha.shape[0] == knowledge.shape[0]
        alpha = self.alpha if again else knowledge.new_zeros(len(knowledge), len(layout.weights))
        return replace(self, knowledge=knowledge, alpha=alpha)

    def weights(self, layout: Layout, index: int) -> Tensor:
        """The weights ``[n]`` of the stage at a place in ``stages``."""
        theta = composed(layout, self.base, self.mask[index], self.adaptive[index])
        current = index == len(self.stages) - 1
        return theta + borrowed(layout, self.alpha, self.knowledge) if current else theta

    def index(self, stage: int) -> int:
        """The index of a stage's parts; of the current stage's if the node has not met that stage."""
        return self.stages.index(stage) if stage in self.stages else len(self.stages) - 1

    def arrays(self) -> Arrays:
        """To be kept by the node."""
        tensors = {name: getattr(self, name).detach().cpu().numpy().copy() for name in _TENSORS}
        return {"stages": np.array(self.stages), **tensors}

    @classmethod
    def read(cls, arrays: Arrays) -> Parts | None:
        """From :meth:`arrays`; ``None`` where there are none."""
        if "stages" not in arrays:
            return None
        tensors = {name: torch.from_numpy(arrays[name].copy()) for name in _TENSORS}
        return cls(stages=tuple(arrays["stages"].tolist()), **tensors)

    def to(self, device: torch.device) -> Parts:
        """The same on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _TENSORS})


_TENSORS = tuple(part.name for part in fields(Parts) if part.name != "stages")


def composed(layout: Layout, base: Tensor, mask: Tensor, adaptive: Tensor) -> Tensor:
    """B ⊙ σ(m) + A, of one stage (``mask`` ``[u]``, ``adaptive`` ``[n]``) or of several at once (``[k, u]``, ...)."""
    return torch.addcmul(adaptive, base, torch.sigmoid(mask).index_select(-1, layout.unit_of))


def borrowed(layout: Layout, alpha: Tensor, knowledge: Tensor) -> Tensor:
    """Σ_k α_k K_k ``[n]``."""
    # Not index_select, whose gradient loops over the n numbers when there is more than one row.
    return (alpha.gather(1, layout.layer_of.expand_as(knowledge)) * knowledge).sum(0)


class DecomposedModel(nn.Module):
    """The parts of a model (:class:`~fedapps.clients.decomposition.Parts`) as parameters to train.

    ``base`` ``[n]`` is of all stages, ``adaptive`` ``[n]``, ``mask`` ``[u]``, ``own`` ``[o]`` and ``alpha`` ``[K, L]``
    are of the current one. The loss does not depend on those of earlier stages, ``past_adaptive`` ``[k-1, n]`` and
    ``past_mask`` ``[k-1, u]``: they move only where a prior gives them a gradient.

    Parameters
    ----------
    plain : nn.Module
        The task's model. Only its buffers are used; its parameters are placeholders.
    layout, parts
        On the device of ``plain``.
    """

    def __init__(self, plain: nn.Module, layout: Layout, parts: Parts) -> None:
        super().__init__()
        self.base = nn.Parameter(parts.base)
        self.adaptive = nn.Parameter(parts.adaptive[-1])
        self.mask = nn.Parameter(parts.mask[-1])
        self.own = nn.Parameter(parts.own[-1])
        self.alpha = nn.Parameter(parts.alpha)
        self.past_adaptive = nn.Parameter(parts.adaptive[:-1])
        self.past_mask = nn.Parameter(parts.mask[:-1])
        self.plain = plain.requires_grad_(False)
        self.layout = layout
        self.begun_with = parts

    def loss(self, batch: Batch, plain_loss: Loss) -> Tensor:
        """The loss of the current stage's model on a batch; ``plain_loss`` is that of a plain model."""
        weights = composed(self.layout, self.base, self.mask, self.adaptive)
        if len(self.alpha):
            weights = weights + borrowed(self.layout, self.alpha, self.begun_with.knowledge)
        named = {f"plain.{name}": tensor for name, tensor in self._named(weights, self.own).items()}
        return torch.as_tensor(functional_call(self, named, (batch, plain_loss)))

    def forward(self, batch: Batch, plain_loss: Loss) -> Tensor:
        """The loss of the plain model. :meth:`loss` calls it with the composed weights."""
        return plain_loss(self.plain, batch)

    def parts(self) -> Parts:
        """The parts as they are now."""
        begun = self.begun_with
        return Parts(
            stages=begun.stages,
            base=self.base.detach(),
            adaptive=torch.cat([self.past_adaptive, self.adaptive[None]]).detach(),
            mask=torch.cat([self.past_mask, self.mask[None]]).detach(),
            own=torch.cat([begun.own[:-1], self.own[None]]).detach(),
            old=begun.old,
            knowledge=begun.knowledge,
            alpha=self.alpha.detach(),
        )

    def at(self, stage: int) -> nn.Module:
        """The plain model with the parameters of a stage, or of the current one if the node has not met that stage.

        It is the same module in every call, with other values.
        """
        parts = self.parts()
        index = parts.index(stage)
        load_arrays(self.plain, self._named(parts.weights(self.layout, index), parts.own[index]))
        return self.plain

    def _named(self, weights: Tensor, own: Tensor) -> dict[str, Tensor]:
        layout = self.layout
        return {**layout.split(layout.weights, weights), **layout.split(layout.own, own)}


@dataclass(frozen=True)
class Drift:
    """λ_d Σ_s ‖B ⊙ σ(m_s) + A_s − θ_s‖² + λ_A Σ_s |A_s| over the earlier stages.

    ``weight`` is λ_d ≥ 0, ``l1`` λ_A ≥ 0, ``old`` ``[k-1, n]`` θ. Without ``masks``, the m_s are fixed.
    """

    weight: float
    layout: Layout
    old: Tensor
    l1: float = 0.0
    masks: bool = True

    @torch.no_grad()
    def add_gradient(self, named: Mapping[str, nn.Parameter]) -> None:
        """Add the gradient of the base, and set those of A_s and m_s, which no loss depends on."""
        base, adaptive, mask = named["base"], named["past_adaptive"], named["past_mask"]
        assert base.grad is not None
        gates = torch.sigmoid(mask)
        wide = gates.index_select(1, self.layout.unit_of)
        moved = 2 * self.weight * (torch.addcmul(adaptive, base, wide) - self.old)
        base.grad.add_((moved * wide).sum(0))
        adaptive.grad = moved.add(adaptive.sign(), alpha=self.l1)
        if self.masks:
            by_unit = torch.zeros_like(gates).scatter_add_(1, self.layout.unit_of.expand_as(wide), moved * base)
            mask.grad = by_unit * gates * (1 - gates)


@dataclass(frozen=True)
class PartsPrior(QuadraticPrior):
    """A quadratic prior, ``absolute`` Σ|θ| of the parameters named there, and a drift of the earlier stages."""

    absolute: Mapping[str, float] = field(default_factory=dict)
    drift: Drift | None = None

    @property
    def undecayed(self) -> frozenset[str]:
        """A_s and m_s of earlier stages: no loss depends on them, so weight decay would move them."""
        return frozenset() if self.drift is None else frozenset({"past_adaptive", "past_mask"})

    def __add__(self, other: QuadraticPrior) -> PartsPrior:
        """The sum with a quadratic prior."""
        total = super().__add__(other)
        return PartsPrior(total.precision, total.linear, self.absolute, self.drift)

    #: Python prefers it to the ``__add__`` of a QuadraticPrior on the left, which would drop the other terms.
    __radd__ = __add__

    def add_gradient(self, named: Mapping[str, nn.Parameter]) -> None:
        """As in the parent, with 0 as the derivative of |θ| at 0."""
        super().add_gradient(named)
        with torch.no_grad():
            for name, weight in self.absolute.items():
                gradient = named[name].grad
                assert gradient is not None
                gradient.add_(named[name].sign(), alpha=weight)
        if self.drift is not None:
            self.drift.add_gradient(named)
