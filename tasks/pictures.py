"""Images as people have them, files, Pillow images and arrays, and which of them can become 8-bit RGB, and how.

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
"""

import io
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from fedapps.base.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

#: One image: the path of a file, a Pillow image, or pixels, uint8 ``[H, W]`` (grey), ``[H, W, 3]``, or as a tensor
#: ``[3, H, W]`` or ``[1, H, W]``.
GivenImage: TypeAlias = "str | Path | Image.Image | np.ndarray | Tensor"
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
_CONVERT = "save it as 8-bit RGB or grey"
_REPLACE = "replace it, or remove it"


def unsupported(image: Image.Image, max_pixels: int = MAX_PIXELS, limit: str = "") -> str:
    """Return why an opened image cannot become 8-bit RGB, or why it has too many pixels; "" if it can be used.

    Only images with an alpha channel are decoded. ``limit`` is the key of ``max_pixels``, for the message.
    """
    mode = image.mode
    if image.format not in (None, "MPO", *FORMATS):  # a JPEG with several pictures becomes an MPO
        return f"has the format {image.format}: only {', '.join(FORMATS)} are decoded; {_CONVERT}"
    if (pixels := image.width * image.height) > max_pixels:
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
