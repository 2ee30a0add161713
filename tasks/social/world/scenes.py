"""Simulated scenes to rate: people, objects and interactions around a robot in a room.

Rooms have right angles: a rectangle, some of whose corners are cut out, perhaps with a bay.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

SIDES = (3.5, 9.0)  # metres
NOTCH_SHARE = 0.4  # of the corners
BAY_SHARE = 0.3  # of the rooms
MARGIN = 0.3  # metres a body keeps from the walls
SPACE = 0.45  # metres between two bodies
CANDIDATES = 32
MOST_PARTIES = 10


def draw_room(rng: np.random.Generator) -> FloatArray:
    """The 4 to 16 corners of a room, ``[K, 2]`` in metres, counterclockwise, turned by a random angle."""
    width, depth = rng.uniform(*SIDES, size=2)
    corners = np.array([[0, 0], [width, 0], [width, depth], [0, depth]])
    along = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]])  # the direction of the side that follows a corner
    lengths = np.array([width, depth, width, depth])
    bay = rng.integers(4) if rng.random() < BAY_SHARE else None
    points = []
    for side in range(4):
        corner, ahead, before = corners[side], along[side], along[side - 1]
        if rng.random() < NOTCH_SHARE:
            back, on = rng.uniform(0.1, 0.35, size=2) * (lengths[side - 1], lengths[side])
            points += [corner - back * before, corner - back * before + on * ahead, corner + on * ahead]
        else:
            points.append(corner)
        if side == bay:
            start, stop = rng.uniform(0.36, 0.45) * lengths[side], rng.uniform(0.55, 0.64) * lengths[side]
            outwards = rng.uniform(0.5, 2.0) * np.array([ahead[1], -ahead[0]])
            first, last = corner + start * ahead, corner + stop * ahead
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


@dataclass(frozen=True)
class Body:
    """A person or an object: position in metres, orientation in degrees.

    As in SocNav1, a person with orientation o faces ``(sin o, -cos o)``.
    """

    human: bool
    x: float
    y: float
    orientation: float


@dataclass(frozen=True)
class Scene:
    """A robot at the origin with orientation 0, the ``bodies`` around it and the ``room [K, 2]`` in metres.

    ``links`` are pairs of indices into ``bodies``: a person, and the person or object that the person attends to.
    """

    bodies: tuple[Body, ...]
    links: tuple[tuple[int, int], ...]
    room: FloatArray


def draw_scene(rng: np.random.Generator) -> Scene:
    """A room with up to ten parties: a person alone, two who talk, or one with an object.

    The robot and all bodies are inside, at least 0.3 m from every wall; bodies are at least 0.45 m apart. A partner
    or object for whom there is no place is left out. Places and corners are rounded to centimetres.
    """
    room = draw_room(rng)
    robot = _free_place(rng, room, np.empty((0, 2)))
    while robot is None:
        robot = _free_place(rng, room, np.empty((0, 2)))
    room = np.round(room - robot, 2)
    bodies: list[Body] = []
    links: list[tuple[int, int]] = []
    for _ in range(min(int(rng.gamma(1.6, 2.2)), MOST_PARTIES)):
        point = _free_place(rng, room, _places(bodies))
        if point is None:
            continue
        turn = int(rng.integers(-180, 180))
        bodies.append(Body(True, round(point[0], 2), round(point[1], 2), turn))
        company = rng.random()
        if company < 0.4:
            continue
        looks = np.array([np.sin(np.radians(turn)), -np.cos(np.radians(turn))])
        partner = point + rng.uniform(0.6, 2.4) * looks
        if _is_free(room, partner[None], _places(bodies))[0]:
            links.append((len(bodies) - 1, len(bodies)))
            talks = company < 0.7
            facing = (turn + 360) % 360 - 180 if talks else int(rng.integers(-180, 180))
            bodies.append(Body(talks, float(partner[0]), float(partner[1]), facing))
    return Scene(tuple(bodies), tuple(links), room)


def _places(bodies: list[Body]) -> FloatArray:
    """Where nobody else may stand: the robot is spared only by the raters."""
    return np.array([(0.0, 0.0), *((body.x, body.y) for body in bodies)])


def _is_free(room: FloatArray, points: FloatArray, taken: FloatArray) -> np.ndarray:
    apart = np.linalg.norm(points[:, None] - taken, axis=-1) >= SPACE
    free: np.ndarray = inside_by(room, points, MARGIN) & apart.all(axis=1)
    return free


def _free_place(rng: np.random.Generator, room: FloatArray, taken: FloatArray) -> FloatArray | None:
    points = rng.uniform(room.min(axis=0), room.max(axis=0), size=(CANDIDATES, 2))
    free: FloatArray = points[_is_free(room, points, taken)]
    return free[0] if len(free) else None
