"""Draws trees, lamps, signs, cars and people as upright sprites into an image."""

import math

import numpy as np

from .furniture import CAR
from .noise import Floats
from .sprites import ASPECT, SIZE
from .view import View, Visit

NEAREST = 2.5  # minimum distance in metres of what is drawn
FARTHEST = 65.0
SMALLEST = 4.0  # pixels


def draw_things(visit: Visit, view: View, image: Floats, depth: Floats) -> None:
    """Draw street furniture into ``image [H, W, 3]`` where ``depth [H, W]`` is larger.

    Distant things are drawn first. Both arrays are modified.
    """
    height, width = depth.shape
    things, camera = visit.furniture, visit.conditions.camera
    offset = things.place - view.place
    away, side = offset @ view.ahead, offset @ view.right
    safe = np.maximum(away, 0.1)
    column, span = width / 2 + view.focal * side / safe, view.focal * things.height / safe
    seen = (away > NEAREST) & (away < FARTHEST) & (column + span > 0) & (column - span < width) & (span > SMALLEST)
    index = np.flatnonzero(seen)
    index = index[np.argsort(-away[index], kind="stable")]
    lit = visit.light.ambient + 0.5 * visit.light.sun
    turned = np.abs(things.along[index] @ view.right)  # cars in a crossing street are seen from the side
    parts = (things.kind, things.variant, away, span, column)
    for kind, variant, reach, tall, centre, turn in zip(
        *(p[index].tolist() for p in parts), turned.tolist(), strict=True
    ):
        broad = tall * ASPECT[kind] * (1 + 1.6 * turn * (kind == CAR))
        left = centre - broad / 2
        foot = float(view.middle[min(max(int(centre), 0), width - 1)]) + view.focal * camera.height / reach
        top, bottom = max(0, round(foot - tall)), min(height, round(foot))
        first, last = max(0, round(left)), min(width, round(left + broad))
        if top >= bottom or first >= last:
            continue
        levels = visit.sprites[kind][variant % len(visit.sprites[kind])].levels
        level = levels[min(len(levels) - 1, max(0, int(math.log2(max(1.0, SIZE / tall)))))]
        picture = level[_sample(top, bottom, foot - tall, tall, len(level))]
        picture = picture[:, _sample(first, last, left, broad, len(level))]
        box = (slice(top, bottom), slice(first, last))
        cover = picture[..., 3] * (depth[box] > reach)
        image[box] += (picture[..., :3] * lit - image[box]) * cover[..., None]
        depth[box] = np.where(cover > 0.5, reach, depth[box])


def _sample(start: int, stop: int, begin: float, length: float, count: int) -> np.ndarray:
    """The indices of the sprite's ``count`` pixels that the pixels from ``start`` to ``stop`` show."""
    at = ((np.arange(start, stop) + (0.5 - begin)) * (count / length)).astype(np.int64)
    sampled: np.ndarray = np.minimum(np.maximum(at, 0), count - 1)
    return sampled
