"""Runs images through a network in chunks: feature maps of the frozen layers, which can be cached, and descriptors.

Frozen layers never change, so a node that trains without augmentation needs to run them only once. The maps of n images
take n times :func:`map_bytes`; FedVPR's ResNet18 at 288x384 produces 0.88 MB per image. Besides the result, one chunk
of images and its activations are in memory.

A network always computes ``trained_part(frozen_part(images))``. With cached maps, descriptors and gradients equal those
of the whole network bit by bit if the frozen layers ran on chunks of the same size, and otherwise up to rounding,
because libraries choose algorithms by size. On a CPU maps differed by up to 6e-7 of their largest value and descriptors
by 5e-8.
"""

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from .networks import PlaceNetwork


def map_shape(network: PlaceNetwork, height: int, width: int) -> tuple[int, ...]:
    """Return the shape of the map of an image: channels, height and width, or whatever the frozen layers give.

    Raises
    ------
    ValueError
        The image is too small for the network.
    """
    image = torch.zeros(1, 3, height, width, dtype=torch.uint8, device=_device(network))
    try:
        with torch.no_grad():
            return tuple(network.frozen_part(image).shape[1:])
    except RuntimeError as error:
        raise ValueError(f"images of {height}x{width} are too small for the network ({error})") from error


def map_bytes(network: PlaceNetwork, height: int, width: int) -> int:
    """Return the memory in bytes that the map of one image takes."""
    return 4 * prod(map_shape(network, height, width))


def frozen_maps(network: PlaceNetwork, images: Tensor, *, chunk: int = 32, out: Tensor | None = None) -> Tensor:
    """Compute the maps ``[n, channels, h, w]`` (float32, on the CPU) of uint8 images ``[n, 3, height, width]``.

    Parameters
    ----------
    network : PlaceNetwork
        The network.
    images : Tensor
        The images.
    chunk : int
        The number of images per forward pass.
    out : Tensor, optional
        Receives the maps, for example a tensor in a memory-mapped file.
    """
    if out is None:
        out = torch.empty(len(images), *map_shape(network, *images.shape[-2:]))
    with torch.no_grad():
        for start in range(0, len(images), chunk):
            part = images[start : start + chunk].to(_device(network))
            out[start : start + chunk] = network.frozen_part(part).cpu()
    return out


def describe(network: PlaceNetwork, images: Tensor, *, chunk: int = 32) -> Tensor:
    """Compute the descriptors ``[n, width]`` of images, on the CPU, with the network in evaluation mode."""
    return _described(network, network, images, chunk)


def describe_maps(network: PlaceNetwork, maps: Tensor, *, chunk: int = 32) -> Tensor:
    """Compute the descriptors ``[n, width]`` of maps, on the CPU, with the network in evaluation mode."""
    return _described(network, network.trained_part, maps, chunk)


def _described(network: nn.Module, part: Callable[[Tensor], Tensor], inputs: Tensor, chunk: int) -> Tensor:
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            return torch.cat([part(some.to(_device(network))).cpu() for some in torch.split(inputs, chunk)])
    finally:
        network.train(training)


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device
