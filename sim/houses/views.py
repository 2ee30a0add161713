"""The 36 views of a panorama and the rectangles that objects fill in them.

As in Room-to-Room (Anderson et al., CVPR 2018, Sec. 4): view ``q`` looks towards heading ``30 (q % 12)`` degrees,
clockwise from +y, and elevation ``30 (q // 12 - 1)`` degrees. Pictures have 640 x 480 pixels and a vertical field of
view of 60 degrees.
"""

import numpy as np
from numpy.typing import NDArray

from .sight import Bools, Floats

VIEWS = 36
WIDTH, HEIGHT = 640, 480
FOCAL = HEIGHT / 2 / np.tan(np.radians(30))  # pixels
NEAR = 0.05  # metres: what is closer to the camera's plane is cut off
EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b) in (1, 2, 4)])
"""The edges of a box whose corners are numbered by the bits x, y, z."""


def view_axes() -> Floats:
    """Right, up and forward of each view, ``[36, 3, 3]``."""
    index = np.arange(VIEWS)
    heading, elevation = np.radians(30.0 * (index % 12)), np.radians(30.0 * (index // 12 - 1))
    sin_h, cos_h, sin_e, cos_e = np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)
    right = np.stack([cos_h, -sin_h, np.zeros(VIEWS)], axis=1)
    up = np.stack([-sin_h * sin_e, -cos_h * sin_e, cos_e], axis=1)
    forward = np.stack([sin_h * cos_e, cos_h * cos_e, sin_e], axis=1)
    return np.stack([right, up, forward], axis=1)


AXES = view_axes()


def boxes_in_views(corners: Floats) -> tuple[NDArray[np.int64], Bools]:
    """Where boxes appear in the views of a camera at the origin.

    ``corners`` ``[M, 8, 3]`` in metres, numbered by the bits x, y, z. Gives the rectangles ``[M, 36, 4]`` as whole
    pixels x, y, width, height, with the origin at the top left, and whether they lie in the picture ``[M, 36]``.
    A rectangle bounds what of the box is in front of the camera; nothing hides it.
    """
    local = np.einsum("mkd,qad->mqka", corners, AXES)
    first, second = local[:, :, EDGES[:, 0]], local[:, :, EDGES[:, 1]]
    span = second[..., 2:] - first[..., 2:]
    crosses = (first[..., 2:] < NEAR) != (second[..., 2:] < NEAR)
    share = np.where(crosses, (NEAR - first[..., 2:]) / np.where(crosses, span, 1.0), 0.0)
    cuts = first + share * (second - first)
    points = np.concatenate([local, cuts], axis=2)
    ahead = np.concatenate([local[..., 2] >= NEAR, crosses[..., 0]], axis=2)
    depth = np.where(ahead, points[..., 2], 1.0)
    x, y = WIDTH / 2 + FOCAL * points[..., 0] / depth, HEIGHT / 2 - FOCAL * points[..., 1] / depth

    def bounds(values: Floats, most: int) -> tuple[Floats, Floats]:
        low = np.where(ahead, values, np.inf).min(axis=-1)
        high = np.where(ahead, values, -np.inf).max(axis=-1)
        return np.floor(np.clip(low, 0, most)), np.ceil(np.clip(high, 0, most))

    (left, right), (top, bottom) = bounds(x, WIDTH), bounds(y, HEIGHT)
    rectangles = np.stack([left, top, right - left, bottom - top], axis=-1).astype(np.int64)
    return rectangles, (right > left) & (bottom > top)
