"""What can be seen in a house: lines of sight on its floor plan, and the 36 views of a panorama.

As in Room-to-Room (Anderson et al., CVPR 2018, Sec. 4): view ``q`` looks towards heading ``30 (q % 12)`` degrees,
clockwise from +y, and elevation ``30 (q // 12 - 1)`` degrees. Pictures have 640 x 480 pixels and a vertical field of
view of 60 degrees. Objects fill rectangles in them.
"""

import numpy as np
from numpy.typing import NDArray

from .plan import Plan, Rect

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
VIEWS = 36
WIDTH, HEIGHT = 640, 480
FOCAL = HEIGHT / 2 / np.tan(np.radians(30))  # pixels
NEAR = 0.05  # metres: what is closer to the camera's plane is cut off
EDGES = np.array([(a, b) for a in range(8) for b in range(a + 1, 8) if (a ^ b) in (1, 2, 4)])
"""The edges of a box whose corners are numbered by the bits x, y, z."""


def is_clear(start: Floats, end: Floats, walls: Floats) -> Bools:
    """Whether no wall touches the straight line from ``start`` to ``end``.

    ``start`` and ``end`` are ``[..., 2]`` and are broadcast against each other; ``walls`` is ``[W, 4]``: x0, y0, x1, y1
    of each wall. All in metres.
    """
    start, end = start[..., None, :], end[..., None, :]
    first, second = walls[:, :2], walls[:, 2:]
    across = _side(start, end, first) * _side(start, end, second)
    along = _side(first, second, start) * _side(first, second, end)
    return np.asarray(~((across <= 0) & (along <= 0)).any(axis=-1))


def _side(origin: Floats, to: Floats, point: Floats) -> Floats:
    """Positive where ``point`` is to the left of the line from ``origin`` to ``to``, 0 on it."""
    line, away = to - origin, point - origin
    return np.asarray(line[..., 0] * away[..., 1] - line[..., 1] * away[..., 0])


def walls_of(plan: Plan, floor: int) -> Floats:
    """The walls of one floor without the gaps of its doors, ``[W, 4]``; a wall between two rooms occurs twice."""
    walls: list[tuple[float, float, float, float]] = []
    for number, room in enumerate(plan.rooms):
        if room.floor != floor:
            continue
        rect = room.rect
        for along_x, at in ((True, rect.y0), (True, rect.y1), (False, rect.x0), (False, rect.x1)):
            low, high = (rect.x0, rect.x1) if along_x else (rect.y0, rect.y1)
            gaps = sorted(
                (middle - door.width / 2, middle + door.width / 2)
                for door in plan.doors_of(number)
                for middle in [door.x if along_x else door.y]
                if door.along_x == along_x and (door.y if along_x else door.x) == at
            )
            bounds = [low, *(bound for gap in gaps for bound in gap), high]
            for start, stop in zip(bounds[::2], bounds[1::2], strict=True):
                walls.append((start, at, stop, at) if along_x else (at, start, at, stop))
    return np.array(walls).reshape(-1, 4)


def diagonals(rects: list[Rect]) -> Floats:
    """Two lines for each rectangle, ``[2R, 4]``: a straight way through it crosses at least one of them."""
    lines = [((r.x0, r.y0, r.x1, r.y1), (r.x0, r.y1, r.x1, r.y0)) for r in rects]
    return np.array(lines, dtype=float).reshape(-1, 4)


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
