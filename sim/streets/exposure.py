"""Converts the light that enters a camera into the image that it stores."""

import numpy as np
from numpy.typing import NDArray

from .conditions import Conditions
from .noise import Floats


def expose(image: Floats, conditions: Conditions, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Expose, tint and vignette ``image [H, W, 3]``; add noise drawn from ``rng`` and the car's bonnet, if visible."""
    camera = conditions.camera
    height, width = image.shape[:2]
    y, x = np.linspace(-1, 1, height, dtype=np.float32)[:, None], np.linspace(-1, 1, width, dtype=np.float32)
    gain = camera.exposure * (1.35 if conditions.night else 1.0)
    stored = image * (gain * np.array(camera.cast, np.float32))
    stored *= (1 - 0.5 * camera.vignette * (x * x + y * y))[..., None]
    stored = np.minimum(np.maximum(stored, 0), 1) ** np.float32(camera.contrast)
    noise = rng.standard_normal((height, width), dtype=np.float32)
    stored += (camera.noise * (1.8 if conditions.night else 1.0)) * noise[..., None]
    if camera.panel:
        bonnet = y[:, 0] > 1 - 2 * camera.panel
        stored[bonnet] = 0.12 + 0.05 * stored[bonnet]
    pixels: NDArray[np.uint8] = (255 * np.minimum(np.maximum(stored, 0), 1) + 0.5).astype(np.uint8)
    return pixels
