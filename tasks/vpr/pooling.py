"""From a map of local features to one descriptor: how the positions are pooled.

- SPOC, their mean: Babenko and Lempitsky, *Aggregating Deep Convolutional Features for Image Retrieval*, ICCV 2015.
- MAC, their maximum: Tolias et al., *Particular Object Retrieval with Integral Max-Pooling*, ICLR 2016.
- GeM, between the two: Radenovic et al., *Fine-Tuning CNN Image Retrieval with No Human Annotation*, PAMI 2018.

All take ``[b, channels, height, width]`` and give ``[b, channels]``.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn


class Spoc(nn.Module):
    """The mean over positions."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(-2, -1))


class Mac(nn.Module):
    """The maximum over positions."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.amax(dim=(-2, -1))


class Gem(nn.Module):
    """The generalised mean (mean of x^p)^(1/p) of features cut off below at ``eps``, with p > 0 learned.

    p = 1 is SPOC and p to infinity tends to MAC, on features that are nowhere below ``eps``.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p]))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        kept = maps.clamp(min=self.eps)
        # The mean scales with its features: scaled by their maximum no power leaves the range of floats, and since it
        # scales, the maximum counts as a constant in the gradient.
        top = kept.detach().amax(dim=(-2, -1), keepdim=True)
        mean = (kept / top).pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
        return top.flatten(1) * mean


POOLINGS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType({"gem": Gem, "spoc": Spoc, "mac": Mac})
