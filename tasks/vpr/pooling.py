"""Pooling of a map of local features into one descriptor.

- SPOC, the mean: Babenko and Lempitsky, *Aggregating Deep Convolutional Features for Image Retrieval*, ICCV 2015.
- MAC, the maximum: Tolias et al., *Particular Object Retrieval with Integral Max-Pooling*, ICLR 2016.
- GeM, the generalised mean: Radenovic et al., *Fine-Tuning CNN Image Retrieval with No Human Annotation*, PAMI 2018.

All map ``[b, channels, height, width]`` to ``[b, channels]``.
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
    """The generalised mean (mean of x^p)^(1/p) of features clipped below at ``eps``, with a learned exponent p > 0.

    p = 1 is SPOC, and p -> infinity approaches MAC, for features of at least ``eps``.
    """

    def __init__(self, p: float = 3.0, eps: float = 1e-6) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([p]))
        self.eps = eps

    def forward(self, maps: Tensor) -> Tensor:
        kept = maps.clamp(min=self.eps)
        # The mean is homogeneous in the features. Dividing by their maximum keeps powers within the range of floats;
        # by homogeneity, the gradient may treat the maximum as a constant.
        top = kept.detach().amax(dim=(-2, -1), keepdim=True)
        mean = (kept / top).pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
        return top.flatten(1) * mean


POOLINGS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType({"gem": Gem, "spoc": Spoc, "mac": Mac})
