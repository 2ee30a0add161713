"""Sets of images that run through a network in chunks: cached feature maps of the frozen layers, and descriptors.

Frozen layers never change, so a node that trains without augmentation needs to run them only once. The maps of n images
take n times :func:`map_bytes`; FedVPR's ResNet18 at 288x384 produces 0.88 MB per image. Besides the result, one chunk
of images and its activations are in memory.

A network always computes ``trained_part(frozen_part(images))``. With cached maps, descriptors and gradients equal those
of the whole network bit by bit if the frozen layers ran on chunks of the same size, and otherwise up to rounding,
because libraries choose algorithms by size. On a CPU maps differed by up to 6e-7 of their largest value and descriptors
by 5e-8.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from fedapps.tasks.profiles import fingerprint
from torch import Tensor, nn

from .images import Size
from .networks import PlaceNetwork
from .places import Places

CHUNK = 32  # images per forward pass


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


class FeatureMapCache:
    """Caches the feature maps of frozen layers for whole sets of images, up to ``capacity`` bytes.

    The maps of a set are always computed in the same chunks, so they have the same bits whether they come from the
    cache or are computed again. The least recently used sets are dropped first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: OrderedDict[str, tuple[bytes, Tensor]] = OrderedDict()

    def of(self, name: str, places: Places, size: Size, network: PlaceNetwork) -> Tensor | None:
        """Return the maps of all ``places``, a set with a unique ``name``; ``None`` if they exceed the capacity."""
        if self.capacity == 0 or len(places) * map_bytes(network, *size) > self.capacity:
            return None
        digest = fingerprint(network.frozen.state_dict().values())
        if (kept := self._kept.get(name)) is not None and kept[0] == digest:
            self._kept.move_to_end(name)
            return kept[1]
        maps = torch.empty(len(places), *map_shape(network, *size))
        self._kept.pop(name, None)
        while self._kept and maps.nbytes + sum(held.nbytes for _, held in self._kept.values()) > self.capacity:
            self._kept.popitem(last=False)
        for start in range(0, len(places), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(places)))
            frozen_maps(network, places.load_images(rows, size), chunk=CHUNK, out=maps[start : start + CHUNK])
        self._kept[name] = digest, maps
        return maps


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images under a ``name`` that is unique among the sets that share ``kept``, resized to ``size``."""

    name: str
    places: Places
    size: Size
    kept: FeatureMapCache

    def through(self, network: PlaceNetwork) -> "NetworkInputs":
        """Return the images as input of ``network``, whose frozen layers must not change afterwards."""
        return NetworkInputs(self, network, self.kept.of(self.name, self.places, self.size, network))


@dataclass(frozen=True, eq=False)
class NetworkInputs:
    """Images as input of a network; ``maps`` are the cached feature maps of all of them, or ``None``."""

    image_set: ImageSet
    network: PlaceNetwork
    maps: Tensor | None

    def images(self, rows: np.ndarray) -> Tensor:
        """Load images, uint8 ``[n, 3, H, W]``."""
        return self.image_set.places.load_images(rows, self.image_set.size)

    def describe(self, rows: np.ndarray) -> np.ndarray:
        """Compute descriptors ``[n, width]`` with the network's current weights, in evaluation mode."""
        if self.maps is not None:
            return describe_maps(self.network, self.maps[torch.from_numpy(rows)], chunk=CHUNK).numpy()
        chunks = [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]
        described = [describe(self.network, self.images(some), chunk=CHUNK).numpy() for some in chunks]
        return np.concatenate([np.empty((0, self.network.width), dtype=np.float32), *described])
