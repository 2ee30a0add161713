"""Images through a network in chunks: the maps of its frozen layers, which a node may keep, and descriptors.

Frozen layers never change, so for a node that trains without augmentation they need to run once. The maps of n images
take n times :func:`map_bytes`; FedVPR's ResNet18 at 288x384 makes 0.88 MB of an image. Beside the result, one chunk of
images and its activations are in memory.

A network computes ``trained_part(frozen_part(images))`` either way: with the maps kept, descriptors and gradients are
those of the whole network to the last bit where the frozen layers ran on chunks of the same size, and to rounding
where not, since libraries choose an algorithm by size: on a CPU maps differed by up to 6e-7 of their largest value,
descriptors by 5e-8.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .networks import PlaceNetwork


def map_shape(network: PlaceNetwork, height: int, width: int) -> tuple[int, ...]:
    """Channels, height and width of an image's map. Raises ``ValueError`` for images too small for the network."""
    image = torch.zeros(1, 3, height, width, dtype=torch.uint8, device=_device(network))
    try:
        with torch.no_grad():
            return tuple(network.frozen_part(image).shape[1:])
    except RuntimeError as error:
        raise ValueError(f"images of {height}x{width} are too small for the network ({error})") from error


def map_bytes(network: PlaceNetwork, height: int, width: int) -> int:
    """The memory that the map of one image takes."""
    channels, rows, columns = map_shape(network, height, width)
    return 4 * channels * rows * columns


def frozen_maps(network: PlaceNetwork, images: Tensor, *, chunk: int = 32, out: Tensor | None = None) -> Tensor:
    """Maps ``[n, channels, h, w]`` float32 of uint8 images ``[n, 3, height, width]``, on the CPU.

    ``out`` receives them where given, for example a tensor in a file that is mapped to memory.
    """
    if out is None:
        out = torch.empty(len(images), *map_shape(network, *images.shape[-2:]))
    with torch.no_grad():
        for start in range(0, len(images), chunk):
            part = images[start : start + chunk].to(_device(network))
            out[start : start + chunk] = network.frozen_part(part).cpu()
    return out


def describe(network: PlaceNetwork, images: Tensor, *, chunk: int = 32) -> Tensor:
    """Descriptors ``[n, width]`` of images, on the CPU, with the network in evaluation mode."""
    return _described(network, network, images, chunk)


def describe_maps(network: PlaceNetwork, maps: Tensor, *, chunk: int = 32) -> Tensor:
    """Descriptors ``[n, width]`` of maps, on the CPU, with the network in evaluation mode."""
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
