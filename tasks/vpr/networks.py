"""Networks that describe a place by one vector (FedVPR, Section 5.2 and Appendix B).

The names of frozen parameters begin with ``frozen.``, those of trained ones with ``trained.`` and ``pooling.``. Only
the latter are shared if all nodes have the same weights for the former.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tasks.base import DataError

from .backbones import BACKBONES
from .pooling import POOLINGS
from .weights import fitted, read_weights

#: Glob pattern of the parameters that are never trained.
FROZEN = "frozen.*"

Normalisation = Literal["imagenet", "caffe"]
BatchNorms = Literal["frozen", "trained"]


class Normalise(nn.Module):
    """Normalises RGB images ``[b, 3, height, width]``, uint8 or floats in [0, 1], for the first layer.

    ``imagenet``: scale to [0, 1], subtract ImageNet's mean, divide by its standard deviation. ``caffe``: scale to [0,
    255], subtract the mean, and reverse the order of the channels (BGR).
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, kind: Normalisation) -> None:
        super().__init__()
        self.kind = kind
        caffe = kind == "caffe"
        shift = [123.68, 116.779, 103.939] if caffe else [0.485, 0.456, 0.406]
        scale = [1.0, 1.0, 1.0] if caffe else [0.229, 0.224, 0.225]
        # These constants belong to the weights of the first layer and never change, so they are not in the state.
        self.register_buffer("shift", torch.tensor(shift).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(scale).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images have shape {tuple(images.shape)}: must be [images, 3, height, width]")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"images are of type {images.dtype}: must be torch.uint8, or floats from 0 to 1")
        whole = images.dtype == torch.uint8
        if self.kind == "caffe":
            levels = images.float() if whole else images * 255
            return (levels - self.shift).flip(1)
        return ((images.float() / 255 if whole else images) - self.shift) / self.scale


class PlaceNetwork(nn.Module):
    """Maps images to descriptors of length 1 through frozen layers, trained layers and a pooling.

    Local features are normalised to length 1 at every position before pooling, as in the benchmark of Berton et al.

    Parameters
    ----------
    backbone : str
        A name in ``BACKBONES``.
    pooling : str
        A name in ``POOLINGS``.
    normalisation : str
        The normalisation of images, "imagenet" or "caffe".
    batch_norms : str
        Batch normalisation in the trained layers. ``"frozen"`` keeps statistics and scales, as small batches require,
        so that only convolutions and the pooling are trained. ``"trained"`` normalises by batch statistics and updates
        the running ones. In the frozen layers batch normalisation is always frozen.
    train_all : bool
        Whether to freeze no layer.
    """

    def __init__(
        self,
        backbone: str,
        pooling: str,
        *,
        normalisation: Normalisation = "imagenet",
        batch_norms: BatchNorms,
        train_all: bool = False,
    ) -> None:
        super().__init__()
        self.width = BACKBONES[backbone].width
        self.normalise = Normalise(normalisation)
        self.frozen, self.trained = BACKBONES[backbone].parts(train_all=train_all)
        self.pooling = POOLINGS[pooling]()
        self.frozen.requires_grad_(False)
        self._kept: list[nn.Module] = [self.frozen]
        if batch_norms == "frozen":
            self._kept += [module for module in self.trained.modules() if isinstance(module, nn.BatchNorm2d)]
        for module in self._kept:
            module.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the training mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self._kept:
            module.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Compute the descriptors ``[b, width]`` of uint8 images ``[b, 3, height, width]``."""
        return self.trained_part(self.frozen_part(images))

    def frozen_part(self, images: Tensor) -> Tensor:
        """Compute the maps ``[b, channels, h, w]`` of the frozen layers, which training never changes."""
        maps: Tensor = self.frozen(self.normalise(images))
        return maps

    def trained_part(self, maps: Tensor) -> Tensor:
        """Compute the descriptors ``[b, width]`` from the maps of :meth:`frozen_part`."""
        local = normalize(self.trained(maps), dim=1)
        return normalize(self.pooling(local), dim=1)

    def frozen_names(self) -> set[str]:
        """Return the names in the state that training does not change."""
        kept = {id(tensor) for module in self._kept for tensor in module.state_dict(keep_vars=True).values()}
        return {name for name, tensor in self.state_dict(keep_vars=True).items() if id(tensor) in kept}


def place_network(
    backbone: str,
    pooling: str = "gem",
    *,
    weights: Path | None = None,
    normalisation: Normalisation | None = None,
    batch_norms: BatchNorms = "frozen",
    train_all: bool = False,
) -> PlaceNetwork:
    """Return a network.

    Parameters
    ----------
    backbone : str
        A name in ``BACKBONES``.
    pooling : str
        A name in ``POOLINGS``.
    weights : Path, optional
        The file of the backbone's weights. Without it weights are drawn from torch's global generator.
    normalisation : str, optional
        The normalisation with which the weights were trained. The default is ``"caffe"`` for an ``.npz`` file and
        otherwise torchvision's ``"imagenet"``.
    batch_norms : str
        See :class:`PlaceNetwork`.
    train_all : bool
        Whether to freeze no layer.

    Raises
    ------
    DataError
        A name is unknown, or the file does not fit the network.
    """
    if backbone not in BACKBONES:
        raise DataError(f"backbone = {backbone!r}: must be one of {', '.join(BACKBONES)}")
    if pooling not in POOLINGS:
        raise DataError(f"pooling = {pooling!r}: must be one of {', '.join(POOLINGS)}")
    if normalisation is None:
        normalisation = "caffe" if weights is not None and weights.suffix == ".npz" else "imagenet"
    network = PlaceNetwork(backbone, pooling, normalisation=normalisation, batch_norms=batch_norms, train_all=train_all)
    if weights is not None:
        _load(network, backbone, weights)
    return network


def _load(network: PlaceNetwork, backbone: str, path: Path) -> None:
    """Copy the weights of a file into the network, or nothing if they do not fit."""
    weights = read_weights(path)
    given, problems = _fitted(backbone, (network.frozen, network.trained), weights)
    if problems:
        others = [name for name in BACKBONES if not _fitted(name, _shapes_of(name), weights)[1]]
        advice = (
            f"set vpr.backbone = {' or '.join(map(repr, others))}, which the file fits"
            if others
            else f"the file fits none of {', '.join(BACKBONES)}: use the weights of the backbone that torchvision "
            "publishes, or leave vpr.weights empty for random weights"
        )
        raise DataError(
            "\n  ".join([f"vpr.weights = '{path}': does not fit vpr.backbone = {backbone!r}", *problems, advice])
        )
    wanted = network.frozen.state_dict() | network.trained.state_dict()
    with torch.no_grad():
        for name, tensor in given.items():
            wanted[name].copy_(tensor)


def _fitted(
    backbone: str, parts: Sequence[nn.Module], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    found = BACKBONES[backbone]
    return fitted(parts, weights, unused=found.unused, renamed=found.renamed)


def _shapes_of(backbone: str) -> Sequence[nn.Module]:
    with torch.device("meta"):
        return BACKBONES[backbone].parts()
