"""Random changes of colour and random crops (FedVPR, Section 5.5 and Appendix B).

All functions take RGB images ``[b, 3, height, width]``, uint8 or floats in [0, 1], and return images of the same type.
Every image has its own draws, from torch's global generator. The operations are those of torchvision's transforms,
applied to whole batches.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from sim.seeding import generator

Augmentation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ColourJitter:
    """Random changes of brightness, contrast, saturation and hue, in an order drawn for each batch.

    Attributes
    ----------
    brightness, contrast, saturation : float
        s >= 0 for a factor in [max(0, 1 - s), 1 + s]. 0 leaves images unchanged, bit by bit.
    hue : float
        Maximum shift as a share of the colour circle, 0 to 0.5. 0 leaves images unchanged.

    The paper does not give its strengths.

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

    def __call__(self, images: Tensor) -> Tensor:
        steps = [
            (self.brightness, change_brightness),
            (self.contrast, change_contrast),
            (self.saturation, change_saturation),
        ]
        for index in torch.randperm(4).tolist():
            if index == 3 and self.hue:
                images = shift_hue(images, torch.empty(len(images)).uniform_(-self.hue, self.hue))
            elif index < 3 and steps[index][0]:
                strength, change = steps[index]
                images = change(images, torch.empty(len(images)).uniform_(max(0.0, 1 - strength), 1 + strength))
        return images


def particular_jitter(strongest: ColourJitter, seed: int, client: str) -> ColourJitter:
    """Return the jitter of one client: each strength is drawn once, uniformly between 0 and that of ``strongest``."""
    parts = generator(seed, "vpr", "jitter", client).uniform(size=4)
    brightness, contrast, saturation, hue = (float(part) for part in parts)
    return ColourJitter(
        brightness * strongest.brightness,
        contrast * strongest.contrast,
        saturation * strongest.saturation,
        hue * strongest.hue,
    )


@dataclass(frozen=True)
class RandomResizedCrop:
    """Crops of random area and aspect ratio, resized bilinearly to the size of the image.

    Attributes
    ----------
    area : tuple of float
        Range of the crop's share of the image's area.
    aspect : tuple of float
        Range of width over height, drawn log-uniformly.

    A crop that does not fit is drawn again, up to ten times; then the whole image is used.

    Raises
    ------
    ValueError
        A range is invalid.
    """

    area: tuple[float, float] = (0.5, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ValueError(f"area = {self.area}: must be 0 < low <= high <= 1")
        if not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"aspect = {self.aspect}: must be 0 < low <= high")

    def __call__(self, images: Tensor) -> Tensor:
        return crop_and_resize(images, self.boxes(len(images), *images.shape[2:]))

    def boxes(self, count: int, height: int, width: int) -> Tensor:
        """Draw crops: top, left, height and width, int64 ``[count, 4]``."""
        area = height * width * torch.empty(count, 10).uniform_(*self.area)
        aspect = torch.empty(count, 10).uniform_(math.log(self.aspect[0]), math.log(self.aspect[1])).exp()
        wide, high = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
        fits = (wide > 0) & (wide <= width) & (high > 0) & (high <= height)
        first = fits.int().argmax(dim=1, keepdim=True)
        some = fits.any(dim=1)
        wide = torch.where(some, wide.gather(1, first)[:, 0], width)
        high = torch.where(some, high.gather(1, first)[:, 0], height)
        top = (torch.rand(count) * (height - high + 1)).long()
        left = (torch.rand(count) * (width - wide + 1)).long()
        return torch.stack((top, left, high, wide), dim=1)


@dataclass(frozen=True)
class Sometimes:
    """Applies all ``steps`` to each image with ``probability``; the other images stay unchanged."""

    steps: Sequence[Augmentation] = field(default_factory=tuple)
    probability: float = 0.5

    def __call__(self, images: Tensor) -> Tensor:
        chosen = (torch.rand(len(images)) < self.probability).nonzero()[:, 0].to(images.device)
        changed = images[chosen]
        for step in self.steps:
            changed = step(changed)
        return images.index_copy(0, chosen, changed)


def change_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the colours of each image by its factor."""
    return _blended(images, lambda x: torch.zeros_like(x), factors)


def change_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its mean grey value; the factor 0 gives that grey, 1 the image."""
    return _blended(images, lambda x: _grey(x).mean(dim=(-2, -1), keepdim=True), factors)


def change_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend each image with its grey version; the factor 0 gives grey, 1 the image."""
    return _blended(images, _grey, factors)


def shift_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Rotate the hue of each image by its shift; 1 is a full rotation."""
    x = _as_float(images)
    top, low = x.amax(dim=1), x.amin(dim=1)
    spread = top - low
    divisor = torch.where(spread > 0, spread, 1)
    r, g, b = ((top - channel) / divisor for channel in x.unbind(dim=1))
    red, green, _ = (channel == top for channel in x.unbind(dim=1))
    sixths = torch.where(red, b - g, torch.where(green, 2 + r - b, 4 + g - r))
    sixths = sixths + 6 * shifts.to(x).view(-1, 1, 1)
    # Around the circle, each channel falls from the highest value to the lowest and rises again.
    places = torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1)
    k = (places + sixths[:, None]) % 6
    return _like(top[:, None] - spread[:, None] * torch.minimum(k, 4 - k).clamp(0, 1), images)


def crop_and_resize(images: Tensor, boxes: Tensor) -> Tensor:
    """Resize the crops ``boxes`` (top, left, height, width) of the images to the size of the images."""
    count, _, height, width = images.shape
    x = _as_float(images)
    top, left, high, wide = boxes.to(x).view(count, 4, 1).unbind(dim=1)
    rows = _places(height, x) * (high / height) - 0.5
    columns = _places(width, x) * (wide / width) - 0.5
    # Use no pixel outside the crop.
    rows = top + torch.minimum(rows.clamp(min=0), high - 1)
    columns = left + torch.minimum(columns.clamp(min=0), wide - 1)
    # grid_sample expects coordinates from -1 to 1 between the outer edges of the image.
    rows, columns = (2 * rows + 1) / height - 1, (2 * columns + 1) / width - 1
    grid = torch.stack((columns[:, None, :].expand(-1, height, -1), rows[:, :, None].expand(-1, -1, width)), dim=-1)
    return _like(grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False), images)


def _places(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device, dtype=like.dtype) + 0.5


def _grey(x: Tensor) -> Tensor:
    """The ITU-R 601 luma, ``[b, 1, height, width]``."""
    return (x * torch.tensor([0.299, 0.587, 0.114], device=x.device, dtype=x.dtype).view(3, 1, 1)).sum(1, keepdim=True)


def _blended(images: Tensor, towards: Callable[[Tensor], Tensor], factors: Tensor) -> Tensor:
    x = _as_float(images)
    factor = factors.to(x).view(-1, 1, 1, 1)
    return _like((factor * x + (1 - factor) * towards(x)).clamp(0, 1), images)


def _as_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _like(x: Tensor, images: Tensor) -> Tensor:
    return (x * 255).round().to(torch.uint8) if images.dtype == torch.uint8 else x
