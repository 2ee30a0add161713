"""Random changes of colour and random crops (FedVPR, Section 5.5 and Appendix B), with torchvision's transforms.

Images are RGB ``[b, 3, height, width]``, uint8 or floats in [0, 1], and stay of their type. Every image has its own
draws, from torch's global generator. torchvision is imported when something is augmented, because its import takes as
long as that of torch.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from fedapps.base.seeding import generator

from .options import Options

Augmentation = Callable[[Tensor], Tensor]

#: Ranges of a random crop: its share of the image's area, and its width over its height.
AREA, ASPECT = (0.5, 1.0), (3 / 4, 4 / 3)


@dataclass(frozen=True)
class ColourJitter:
    """Strengths of random changes of colour. The paper does not give its own.

    Attributes
    ----------
    brightness, contrast, saturation : float
        s >= 0 for a factor in [max(0, 1 - s), 1 + s]. 0 leaves images unchanged, bit by bit.
    hue : float
        Maximum shift as a share of the colour circle, 0 to 0.5. 0 leaves images unchanged.

    Raises
    ------
    ValueError
        A strength is out of range.
    """

    brightness: float = 0.5
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 0.1

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 0")
        if not 0 <= self.hue <= 0.5:
            raise ValueError(f"hue = {self.hue}: must be from 0 to 0.5")

    def transform(self) -> nn.Module:
        """Return the transform of one image, ``[3, height, width]``."""
        from torchvision.transforms import v2

        jitter: nn.Module = v2.ColorJitter(self.brightness, self.contrast, self.saturation, self.hue)
        return jitter


def particular_jitter(strongest: ColourJitter, seed: int, client: str) -> ColourJitter:
    """Return the jitter of one client: each strength is drawn once, uniformly between 0 and that of ``strongest``."""
    parts = generator(seed, "vpr", "jitter", client).uniform(size=4)
    return ColourJitter(
        *(float(part) * getattr(strongest, f.name) for part, f in zip(parts, fields(ColourJitter), strict=True))
    )


@dataclass(frozen=True, eq=False)
class PerImage:
    """Applies all ``steps``, transforms of one image, to each image with ``probability``.

    A transform of torchvision has the same draws for all images of a batch, so it gets one image at a time.
    """

    steps: tuple[nn.Module, ...]
    probability: float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        changed = images.clone()
        for index in (torch.rand(len(images)) < self.probability).nonzero()[:, 0].tolist():
            for step in self.steps:
                changed[index] = step(changed[index])
        return changed


def augmentation_of(options: Options, key: str) -> Augmentation | None:
    """Return the augmentation of the node ``key``, applied with probability 1/2 (FedVPR, Appendix B), or ``None``."""
    if options.augment == "none":
        return None
    jitter = ColourJitter()
    if options.augment == "client-jitter":
        jitter = particular_jitter(jitter, options.split_seed, key)
    if options.augment != "jitter-crop":
        return PerImage((jitter.transform(),))
    from torchvision.transforms import v2

    return PerImage((jitter.transform(), v2.RandomResizedCrop(options.size, AREA, ASPECT)))
