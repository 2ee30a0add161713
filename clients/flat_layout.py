"""A model's parameters as flat vectors: where each weight, output unit and layer lies in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

import torch
from torch import Tensor, nn


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
        named = dict(model.named_parameters())
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
        own = {name: p.shape for name, p in named.items() if p.ndim < 2}
        return cls(weights, own, axes, torch.cat(units), torch.cat(layers), torch.cat(layers_of_units))

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
        chosen = set(names)
        return torch.tensor([name in chosen for name in self.weights])[self.layer_of.cpu()].to(self.layer_of.device)

    def strongest(self, mask: Tensor, share: float) -> Tensor:
        """Booleans ``[u]``: of every weight tensor the ``share`` of its units, rounded up, with the largest \\|m\\|.

        Raises ``ValueError`` for a share outside (0, 1].
        """
        if not 0 < share <= 1:
            raise ValueError(f"mask-share = {share}: must be above 0 and at most 1")
        chosen = torch.zeros_like(mask, dtype=torch.bool)
        for layer in range(len(self.weights)):
            units = torch.nonzero(self.layer_of_unit == layer).flatten()
            # Rounding must not add a unit to an exact share; ties go to the first, in every version of torch.
            count = ceil(share * len(units) - 1e-9)
            order = mask[units].abs().sort(descending=True, stable=True).indices
            chosen[units[order[:count]]] = True
        return chosen

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
