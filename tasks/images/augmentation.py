"""Random changes of training images, with torchvision's transforms."""

from collections.abc import Callable

import torch
from torch import Tensor

#: The padding before a random crop, as a part of the height: 4 pixels of 32 (He et al., 2016).
_PART = 8


def augmentation_of(name: str, size: tuple[int, int, int]) -> Callable[[Tensor], Tensor] | None:
    """Return the changes of a batch ``[b, C, H, W]`` by the key ``images.augment``; ``None`` for none.

    Every image has its own draws, from torch's global generator.
    """
    if name == "none":
        return None
    from torchvision.transforms import v2

    steps = [v2.RandomHorizontalFlip()]
    if name == "crop-flip":
        steps.insert(0, v2.RandomCrop(size[:2], padding=max(1, size[0] // _PART)))
    change = v2.Compose(steps)
    return lambda images: torch.stack([change(image) for image in images])
