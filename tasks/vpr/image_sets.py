"""Sets of images as input of a network, with a cache of the frozen layers' feature maps."""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .features import describe, describe_maps, frozen_maps, map_bytes, map_shape
from .images import Size
from .networks import PlaceNetwork
from .places import Places

CHUNK = 32  # images per forward pass


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
        if (found := self._kept.get(name)) is not None and found[0] == digest:
            self._kept.move_to_end(name)
            return found[1]
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


def fingerprint(tensors: Iterable[Tensor]) -> bytes:
    """Return a hash of the bits, shapes, types and kinds of device of ``tensors``."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tensor.device.type} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()
