"""Intersections of the columns of an image with walls."""

from dataclasses import dataclass

import numpy as np

from .buildings import Buildings, Walls, roof_line
from .noise import Bools, Floats, Ints
from .view import View

FAR = 1e5  # depth in metres of a column that meets no wall


@dataclass(frozen=True)
class Hits:
    """The intersections of the ``W`` columns of an image: first the nearest walls, then those that form the skyline.

    Arrays ``[2 W]``. ``depth`` is in metres ahead, :data:`FAR` without a wall; ``along`` is in metres from the wall's
    left end, ``length`` the wall's length. ``top`` is the height of the house in metres above the ground. ``facing`` is
    the cosine between ray and wall, and ``normal [2 W, 2]`` points outwards (east, north).
    """

    depth: Floats
    building: Ints
    along: Floats
    length: Floats
    front: Bools
    top: Floats
    facing: Floats
    normal: Floats


def cast(houses: Buildings, walls: Walls, view: View, height: float) -> Hits:
    """Return the intersections of the columns of ``view`` from a ``height`` in metres."""
    start, stop = walls.start - view.place, walls.stop - view.place
    outside = start[:, 0] * stop[:, 1] < start[:, 1] * stop[:, 0]
    a, a_side, b, b_side = start @ view.ahead, start @ view.right, stop @ view.ahead, stop @ view.right
    deep = np.maximum(a, b)
    reach = (float(np.abs(view.slopes).max()) + 0.01) * deep
    index = np.flatnonzero(outside & (deep > 0.2) & (a_side < reach) & (b_side > -reach))
    if not len(index):
        return _nothing(len(view.slopes))
    a, a_side, b, b_side = (v[index][:, None] for v in (a, a_side, b, b_side))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = (view.slopes * a - a_side) / ((b_side - a_side) - view.slopes * (b - a))
        depth = a + share * (b - a)
        met = (share >= 0) & (share <= 1) & (depth > 0.2)
        depth = np.where(met, depth, np.float32(FAR))
        highest = (houses.height + houses.rise - height)[walls.building[index]]
        steep = np.where(met, highest[:, None] / depth, np.float32(-FAR))

    columns = np.tile(np.arange(len(view.slopes)), 2)
    row = np.concatenate((depth.argmin(axis=0), steep.argmax(axis=0)))
    wall = index[row]
    line = walls.stop[wall] - walls.start[wall]
    length = np.sqrt((line * line).sum(axis=1))
    there = met[row, columns]
    at = np.where(there, share[row, columns], np.float32(0))
    normal = np.stack((line[:, 1], -line[:, 0]), axis=1) / length[:, None]
    rays = view.ahead + view.slopes[columns, None] * view.right
    facing = -(normal * rays).sum(axis=1) / np.sqrt((rays * rays).sum(axis=1))
    return Hits(
        depth=depth[row, columns],
        building=walls.building[wall],
        along=at * length,
        length=length,
        front=walls.front[wall] > 0,
        top=np.where(there, roof_line(houses, walls.building[wall], at), np.float32(-FAR)),
        facing=np.maximum(facing, np.float32(0.05)),
        normal=normal,
    )


def _nothing(columns: int) -> Hits:
    zeros = np.zeros(2 * columns, np.float32)
    none = np.zeros(2 * columns, int)
    return Hits(zeros + FAR, none, zeros, zeros + 1, zeros > 0, zeros - FAR, zeros + 1, np.zeros((2 * columns, 2)))
