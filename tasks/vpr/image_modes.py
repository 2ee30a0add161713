"""Which images can become 8-bit RGB, and how.

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

import numpy as np
from PIL import Image

#: The largest number of pixels if nothing else is given: that of a camera of 50 megapixels.
MAX_PIXELS = 50_000_000
#: Above this, Pillow decodes no picture.
MOST_PIXELS = 2 * 89_478_485
_PLAIN = ("1", "L", "P", "RGB", "YCbCr")
_ALPHA = ("LA", "PA", "RGBA")
_SIXTEEN = ("I;16", "I;16B", "I;16L", "I;16N")
_BITS = 258  # the tag of TIFF: bits per sample
_CONVERT = "save it as 8-bit RGB or grey"


def unsupported(image: Image.Image, max_pixels: int = MAX_PIXELS) -> str:
    """Return why an opened image cannot become 8-bit RGB, or why it has too many pixels; "" if it can be used.

    Only images with an alpha channel are decoded.
    """
    mode = image.mode
    if (pixels := image.width * image.height) > max_pixels:
        return (
            f"has {image.width} x {image.height} = {pixels:,} pixels: at most {max_pixels:,} are accepted "
            "(vpr.max-pixels); make it smaller, or raise the limit"
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


def _is_sixteen(image: Image.Image) -> bool:
    """Whether an image has 16 bits of grey; older versions of Pillow open such PNG and PGM files in mode I."""
    return image.mode in _SIXTEEN or (image.mode == "I" and image.format in ("PNG", "PPM"))


def _is_opaque(image: Image.Image) -> bool:
    return image.convert("RGBA").getchannel("A").getextrema()[0] == 255
