"""Rooms with right angles: a rectangle, some of whose corners are cut out, perhaps with a bay."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SIDES = (3.5, 9.0)  # metres
NOTCH_SHARE = 0.4  # of the corners
BAY_SHARE = 0.3  # of the rooms


def draw_room(rng: np.random.Generator) -> FloatArray:
    """The 4 to 16 corners of a room, ``[K, 2]`` in metres, counterclockwise, turned by a random angle."""
    width, depth = rng.uniform(*SIDES, size=2)
    corners = np.array([[0, 0], [width, 0], [width, depth], [0, depth]])
    along = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])  # the direction of the side that follows a corner
    lengths = np.array([width, depth, width, depth])
    bay = rng.integers(4) if rng.random() < BAY_SHARE else None
    points = []
    for side in range(4):
        corner, here, before = corners[side], along[side], along[side - 1]
        if rng.random() < NOTCH_SHARE:
            back, on = rng.uniform(0.1, 0.35, size=2) * (lengths[side - 1], lengths[side])
            points += [corner - back * before, corner - back * before + on * here, corner + on * here]
        else:
            points.append(corner)
        if side == bay:
            start, stop = rng.uniform(0.36, 0.45) * lengths[side], rng.uniform(0.55, 0.64) * lengths[side]
            outwards = rng.uniform(0.5, 2.0) * np.array([here[1], -here[0]])
            first, last = corner + start * here, corner + stop * here
            points += [first, first + outwards, last + outwards, last]
    angle = rng.uniform(-np.pi, np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned: FloatArray = np.array(points) @ turn.T
    return turned


def inside(room: FloatArray, points: FloatArray) -> NDArray[np.bool_]:
    """Which of ``points`` ``[..., 2]`` lie inside the polygon ``room`` ``[K, 2]``, by the even-odd rule."""
    x, y = points[..., 0, None], points[..., 1, None]
    (x1, y1), (x2, y2) = room.T, np.roll(room, -1, axis=0).T
    crosses = (y1 > y) != (y2 > y)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = x < x1 + (y - y1) * (x2 - x1) / (y2 - y1)
    return np.asarray((crosses & left).sum(axis=-1) % 2 == 1)


def inside_by(room: FloatArray, points: FloatArray, margin: float) -> NDArray[np.bool_]:
    """Which of ``points`` ``[..., 2]`` are inside, ``margin`` metres or more from every wall."""
    return inside(room, points) & (distance_to_walls(room, points) >= margin)


def distance_to_walls(room: FloatArray, points: FloatArray) -> FloatArray:
    """Metres ``[...]`` from each of ``points`` ``[..., 2]`` to the nearest wall of ``room`` ``[K, 2]``."""
    walls = np.roll(room, -1, axis=0) - room
    from_corners = points[..., None, :] - room
    along = np.clip((from_corners * walls).sum(axis=-1) / (walls**2).sum(axis=-1), 0, 1)
    distances: FloatArray = np.linalg.norm(from_corners - along[..., None] * walls, axis=-1).min(axis=-1)
    return distances
