"""Lines of sight between points of a floor plan."""

import numpy as np
from numpy.typing import NDArray

from .plan import Plan, Rect

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
