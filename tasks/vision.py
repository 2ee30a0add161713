"""Images as people have them, files, Pillow images and arrays, as 8-bit RGB; and the classifiers of images.

========================= ==========================================================
8 bits, grey or colour    as they are; a palette gives its colours
1, 2 and 4 bits, grey     scaled to 0 to 255
16 bits, grey             divided by 257, so that 65535 becomes 255
16 bits per colour        the higher byte of each
opaque alpha channel      dropped
========================= ==========================================================

All others are refused, because their meaning is not defined by the file: 12 and 32 bits, floats, CMYK, pixels that are
partly transparent, and several pictures in one file. Of a JPEG with several (MPO), the first is the photograph.

A small file can describe a huge picture, which takes up to 20 bytes of memory per pixel when it is decoded. Pictures
with too many pixels are therefore refused by their first bytes.

Classifiers are those of torchvision and EfficientNet-Lite0, with batch normalisation whose state can be averaged.
torchvision is imported when a network is built, because its import takes as long as that of torch.
"""

import io
import os
import struct
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn
from torch.nn.functional import batch_norm, pad

from fedapps.base.errors import DataError

#: One image: the path of a file, a Pillow image, or pixels, uint8 ``[H, W]`` (grey), ``[H, W, 3]``, or as a tensor
#: ``[3, H, W]`` or ``[1, H, W]``.
GivenImage: TypeAlias = str | Path | Image.Image | np.ndarray | Tensor
#: The endings of image files, in lower case.
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm", ".tif", ".tiff")
#: The formats that are decoded. Pillow knows others, of which EPS starts the program Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "PPM", "TIFF", "GIF")
#: What Pillow raises for bytes that are not an image, or a damaged one. A broken PNG raises SyntaxError.
UNDECODABLE = (
    *(Image.DecompressionBombError, OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError),
    *(IndexError, KeyError, TypeError, struct.error),
)
#: The largest number of pixels if nothing else is given: that of a camera of 50 megapixels.
MAX_PIXELS = 50_000_000
#: Above this, Pillow decodes no picture.
MOST_PIXELS = 2 * 89_478_485
_PLAIN = ("1", "L", "P", "RGB", "YCbCr")
_ALPHA = ("LA", "PA", "RGBA")
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")
_BITS = 258  # the tag of TIFF: bits per sample
_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}
#: The first bytes of the formats above.
_STARTS = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}
_CONVERT = "save it as 8-bit RGB or grey"
_REPLACE = "replace it, or remove it"


def unsupported(image: Image.Image, max_pixels: int = MAX_PIXELS, limit: str = "") -> str:
    """Return why an opened image cannot become 8-bit RGB, or why it has too many pixels; "" if it can be used.

    Only images with an alpha channel are decoded. ``limit`` is the key of ``max_pixels``, for the message.
    """
    mode = image.mode
    if image.format not in (None, "MPO", *FORMATS):  # a JPEG with several pictures becomes an MPO
        return f"has the format {image.format}: only {', '.join(FORMATS)} are decoded; {_CONVERT}"
    if not (pixels := image.width * image.height):
        return f"has {image.width} x {image.height} pixels: at least one is expected"
    if pixels > max_pixels:
        raised = (f" ({limit})", ", or raise the limit") if limit else ("", "")
        return (
            f"has {image.width} x {image.height} = {pixels:,} pixels: at most {max_pixels:,} are accepted{raised[0]}; "
            f"make it smaller{raised[1]}"
        )
    if image.format != "MPO" and getattr(image, "is_animated", False):
        return f"has {getattr(image, 'n_frames', 'several')} pictures ({image.format}): save each as a file"
    if mode in _PLAIN and "transparency" not in image.info:
        return ""
    if mode in _ALPHA or mode in _PLAIN:
        return (
            "" if _is_opaque(image) else f"has transparent pixels (mode {mode}): put it on a background and {_CONVERT}"
        )
    if _is_sixteen(image):
        bits = set(getattr(image, "tag_v2", {}).get(_BITS, (16,)))
        return (
            "" if bits == {16} else f"has {max(bits)} bits per pixel (mode {mode}): scale it to 16 bits, or {_CONVERT}"
        )
    what = {"I": "32-bit or signed pixels", "F": "floating-point pixels", "CMYK": "colours of a printer"}
    return f"has {what.get(mode, 'another kind of pixels')} (mode {mode}), whose range is unknown: {_CONVERT}"


def as_rgb(image: Image.Image) -> Image.Image:
    """Return a supported image as 8-bit RGB."""
    if _is_sixteen(image):
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    return image.convert("RGB")


def problem_in(file: BinaryIO, max_pixels: int = MAX_PIXELS, limit: str = "") -> str:
    """Return what is wrong with an image file, judged by its first and last bytes; "" if nothing is found.

    An image without the last bytes of its format, or with an alpha channel, is decoded.
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            if problem := unsupported(image, max_pixels, limit):
                return problem
            if end := _ENDS.get(image.format or ""):
                file.seek(-len(end), os.SEEK_END)
                if file.read() != end:  # truncated, or followed by other bytes
                    image.load()
    except UnidentifiedImageError:
        return "not an image"
    except UNDECODABLE as error:
        return str(getattr(error, "strerror", None) or error)
    return ""


def seems_whole(content: bytes) -> bool:
    """Return whether the bytes of an image begin and end as those of a JPEG or PNG file that was not truncated."""
    return any(content.startswith(start) and content.endswith(_ENDS[kind]) for kind, start in _STARTS.items())


def decoded(
    content: bytes, name: str, max_pixels: int = MAX_PIXELS, *, limit: str = "", replace: str = _REPLACE
) -> Image.Image:
    """Decode the bytes of an image file in 8-bit RGB.

    Parameters
    ----------
    content : bytes
    name : str
        The name of the image in messages.
    max_pixels : int
    limit : str
        The key of ``max_pixels``, for messages.
    replace : str
        What messages advise about damaged bytes.

    Raises
    ------
    DataError
        They are not an image, a damaged one, or one that is not supported.
    """
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
        problem = unsupported(image, max_pixels, limit)
        if not problem:
            return as_rgb(image)
    except UNDECODABLE as error:
        reason = "it has no known format" if isinstance(error, UnidentifiedImageError) else error
        raise DataError(f"{name}: not an image, or damaged: {reason}; {replace}") from error
    raise DataError(f"{name}: {problem}")


def picture_of(image: GivenImage, name: str) -> Image.Image:
    """Return an image that somebody has in hand as 8-bit RGB.

    Raises
    ------
    DataError
        It is missing, damaged or not supported; the message calls images without a path ``name``.
    """
    if isinstance(image, Image.Image):
        if problem := unsupported(image):
            raise DataError(f"{name} {problem}")
        return as_rgb(image)
    if isinstance(image, (str, Path)):
        path = Path(image).expanduser()
        if not path.is_file():
            raise DataError(f"{path}: no such image")
        return decoded(path.read_bytes(), str(path))
    is_tensor = hasattr(image, "permute") and image.ndim == 3
    pixels = image.permute(1, 2, 0).cpu().numpy() if is_tensor else image  # type: ignore[union-attr]
    if isinstance(pixels, np.ndarray) and pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or not _is_picture(pixels.shape):
        raise DataError(
            f"{name} is a {type(image).__name__} {_shape_of(image)}; expected the path of a file, a Pillow "
            "image, uint8 [H, W, 3] or [H, W], or a uint8 tensor [3, H, W]"
        )
    if not pixels.size:
        raise DataError(f"{name} is a {type(image).__name__} {_shape_of(image)}: at least one pixel is expected")
    return as_rgb(Image.fromarray(pixels))


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 or (len(shape) == 3 and shape[2] == 3)


def _shape_of(image: object) -> str:
    shape, kind = getattr(image, "shape", None), getattr(image, "dtype", None)
    return "" if shape is None else f"of {kind} {list(shape)}"


def _is_sixteen(image: Image.Image) -> bool:
    """Whether an image has 16 bits of grey; older versions of Pillow open such PNG and PGM files in mode I."""
    return image.mode in _SIXTEEN or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _is_opaque(image: Image.Image) -> bool:
    return image.convert("RGBA").getchannel("A").getextrema()[0] == 255


#: Of each stage: expansion, kernel size, stride, channels in and out, blocks.
_STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)


class _Strided(nn.Conv2d):
    """A strided convolution with TensorFlow's padding "SAME": the output has ceil(size / stride) rows and columns."""

    @classmethod
    def of(cls, other: nn.Conv2d) -> "_Strided":
        kernel, stride = other.kernel_size, other.stride
        made = cls(other.in_channels, other.out_channels, kernel, stride, groups=other.groups, bias=False)  # type: ignore[arg-type]
        made.weight = other.weight
        return made

    def forward(self, images: Tensor) -> Tensor:
        sides: list[int] = []
        for size, kernel, stride in zip(images.shape[-2:], self.kernel_size, self.stride, strict=True):
            more = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides = [more // 2, more - more // 2, *sides]  # torch begins with the last dimension
        return super().forward(pad(images, sides))


def efficientnet_lite0(weights: None = None, num_classes: int = 1000) -> nn.Module:
    """Return EfficientNet-Lite0 with drawn weights, under the names of torchvision's EfficientNets.

    ``features.0`` to ``features.8`` are the stem, the seven stages of 16, 24, 40, 80, 112, 192 and 320 channels, and
    the last convolution to 1,280.
    """
    from torchvision.models.efficientnet import EfficientNet, MBConv, MBConvConfig

    block: Any = partial(MBConv, se_layer=lambda *channels, **more: nn.Identity())
    network: nn.Module = EfficientNet(
        [MBConvConfig(*stage, block=block) for stage in _STAGES],
        dropout=0.2,
        num_classes=num_classes,
        norm_layer=partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01),
    )
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.SiLU):
            network.set_submodule(name, nn.ReLU6())
        elif isinstance(module, nn.Conv2d) and module.stride != (1, 1):
            network.set_submodule(name, _Strided.of(module))
    return network


def _published_names() -> Mapping[str, str]:
    names: dict[str, str] = {}
    firsts = accumulate((stage[-1] for stage in _STAGES), initial=0)
    for number, (stage, first) in enumerate(zip(_STAGES, firsts, strict=False), start=1):
        layers = [("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), None, ("_project_conv", "_bn2")]
        for block in range(stage[-1]):
            for index, pair in enumerate(layers[stage[0] == 1 :]):
                for part, layer in enumerate(pair or ()):
                    names[f"_blocks.{first + block}.{layer}."] = f"features.{number}.{block}.block.{index}.{part}."
    for layer, ours in (("_conv_stem", "0.0"), ("_bn0", "0.1"), ("_conv_head", "8.0"), ("_bn1", "8.1")):
        names[f"{layer}."] = f"features.{ours}."
    return names | {"_fc.": "classifier.1."}


#: Beginnings of names in the published file, and the network's names for them, blocks first.
PUBLISHED_NAMES: Mapping[str, str] = MappingProxyType(_published_names())


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation without the integer counter of batches, which federated averaging would average.

    A single value per channel, as in a batch of one example whose map is 1x1, has no variance: it is normalised by the
    running statistics, which it leaves unchanged. PyTorch's layer refuses such a batch.
    """

    @classmethod
    def of(cls, other: nn.BatchNorm2d) -> "BatchNorm":
        """Return one with the parameters and statistics of ``other``."""
        made = cls(other.num_features, other.eps, other.momentum)
        made.num_batches_tracked = None
        made.load_state_dict(other.state_dict(), strict=False, assign=True)
        return made

    def forward(self, input: Tensor) -> Tensor:
        """Return maps ``[b, C, H, W]``, normalised by the batch in training and otherwise by running statistics."""
        if self.training and input.numel() == input.shape[1]:
            return batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(input)

    def _load_from_state_dict(self, *args: object) -> None:
        # The method of the parent class would add a counter.
        nn.Module._load_from_state_dict(self, *args)


def classifiers() -> Mapping[str, Callable[..., nn.Module]]:
    """Return the functions that build torchvision's classifiers and EfficientNet-Lite0, by name."""
    from torchvision import models

    known = {name: models.get_model_builder(name) for name in models.list_models(module=models)}
    return known | {"efficientnet_lite0": efficientnet_lite0}


def without_counters(network: nn.Module) -> nn.Module:
    """Replace the layers of batch normalisation in a network by :class:`BatchNorm`, and return it."""
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.BatchNorm2d):
            network.set_submodule(name, BatchNorm.of(module))
    return network


def take_head(network: nn.Module) -> nn.Linear:
    """Take the last linear layer out of a classifier, which then gives the representation ``[b, width]``.

    A classifier that ends with a convolution of 1x1 and an average over the image, such as SqueezeNet, gets a new
    linear layer on that average.

    Raises
    ------
    ValueError
        It has no such layer.
    """
    for kind in (nn.Linear, nn.Conv2d):
        if linears := [(name, module) for name, module in network.named_modules() if isinstance(module, kind)]:
            name, last = linears[-1]
            network.set_submodule(name, nn.Identity())
            return last if isinstance(last, nn.Linear) else nn.Linear(last.in_channels, last.out_channels)
    raise ValueError("the network has no linear layer")
