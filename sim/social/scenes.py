"""Scenes to be rated: people, objects and interactions around a robot in a room."""

from dataclasses import dataclass

import numpy as np

from .rooms import FloatArray, draw_room, inside_by

MARGIN = 0.3  # metres a body keeps from the walls
SPACE = 0.45  # metres between two bodies
CANDIDATES = 32
MOST_PARTIES = 10


@dataclass(frozen=True)
class Body:
    """A person or an object: place in metres, orientation in degrees.

    As in SocNav1, whoever has orientation o looks along ``(sin o, -cos o)``.
    """

    human: bool
    x: float
    y: float
    orientation: float


@dataclass(frozen=True)
class Scene:
    """A robot at the origin, with orientation 0, the ``bodies`` around it and the ``room`` ``[K, 2]`` in metres.

    ``links`` are pairs of places in ``bodies``: a person, and the person or object he or she attends to.
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
        place = _free_place(rng, room, _places(bodies))
        if place is None:
            continue
        turn = int(rng.integers(-180, 180))
        bodies.append(Body(True, round(place[0], 2), round(place[1], 2), turn))
        company = rng.random()
        if company < 0.4:
            continue
        looks = np.array([np.sin(np.radians(turn)), -np.cos(np.radians(turn))])
        partner = place + rng.uniform(0.6, 2.4) * looks
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
