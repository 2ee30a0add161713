"""One quadratic prior for every method that ties parameters to something.

The penalty is ½ θᵀPθ − Lᵀθ with a diagonal precision P and a linear term L, so its gradient is Pθ − L. With an
anchor a and L = Pa this is ½ P (θ − a)² up to a constant: FedProx has P = µ (Li et al. 2020, Section 3.2), L2
transfer and EWC have P = λ and P = λF (Kirkpatrick et al. 2017, Equation 3); sums of priors are priors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class QuadraticPrior:
    """``precision`` and ``linear`` map parameter names to tensors of the parameter's shape (or broadcastable).

    Parameters without an entry in ``linear`` are free; one that ``precision`` lacks is 0. An empty prior is plain
    training.
    """

    precision: Mapping[str, Tensor]
    linear: Mapping[str, Tensor]

    @classmethod
    def around(cls, anchor: Mapping[str, Tensor], precision: Mapping[str, Tensor] | float) -> QuadraticPrior:
        """The prior ½ P (θ − anchor)². A number stands for the same precision everywhere; it must be ≥ 0."""
        if isinstance(precision, (int, float)):
            if not precision >= 0:
                raise ValueError(f"precision = {precision}: must be at least 0")
            precision = {name: torch.full_like(tensor, precision) for name, tensor in anchor.items()}
        return cls(dict(precision), {name: precision[name] * anchor[name] for name in precision})

    @property
    def undecayed(self) -> frozenset[str]:
        """The names of parameters to which weight decay does not apply."""
        return frozenset()

    def __add__(self, other: QuadraticPrior) -> QuadraticPrior:
        """The sum of two penalties, where both have a tensor on the device of the first."""
        return QuadraticPrior(_sum(self.precision, other.precision), _sum(self.linear, other.linear))

    def add_gradient(self, named: Mapping[str, nn.Parameter]) -> None:
        """Add Pθ − L to the gradients of the named parameters, in place; those that are not trained have none.

        A parameter that the loss does not reach gets this gradient alone, if it is not 0.
        """
        with torch.no_grad():
            for name, linear in self.linear.items():
                parameter = named.get(name)
                if parameter is None or not parameter.requires_grad:
                    continue
                linear = linear.to(parameter)
                precision = self.precision.get(name)
                pull = -linear if precision is None else (precision.to(parameter) * parameter).sub_(linear)
                if parameter.grad is not None:
                    parameter.grad.add_(pull)
                elif pull.any():
                    parameter.grad = pull.expand_as(parameter).clone()


def _sum(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, Tensor]:
    both = {name: left[name] + right[name].to(left[name].device) for name in left if name in right}
    return {**left, **right, **both}
