"""Simulated scenes and raters, written in the published format of SocNav1 (Manso et al., Data 5(1):7, 2020).

A scene has people, objects and interactions around a robot in a room with right angles: a rectangle, some of whose
corners are cut out, perhaps with a bay. Raters have different tastes: what disturbs people when a robot is near, and
how much.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedapps.base.seeding import generator

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


CROWD_RADIUS = 3.0  # metres
CROWD = 8  # people within the radius that count as a full crowd
PASSAGE = 0.5  # metres from the line between two interacting people


@dataclass(frozen=True)
class Taste:
    """The parameters of a rater.

    Attributes
    ----------
    distance : float
        The personal distance in metres.
    front : float
        In [0, 1): the distance is ``1 + front`` times as large in front of a person and ``1 - front`` times behind.
    closeness, crossing, crowding : float
        Weights of intrusion into personal space, of standing in an interaction, and of many people nearby.
    bias : float
        Shift of the score, in points of 100.
    contrast : float
        Factor of the score's distance from 50.
    noise : float
        Standard deviation of the rating noise, in points of 100.
    """

    distance: float
    front: float
    closeness: float
    crossing: float
    crowding: float
    bias: float
    contrast: float
    noise: float


def draw_taste(rng: np.random.Generator) -> Taste:
    """Draw a rater. The scores of two raters on the same scenes typically correlate by 0.7 to 0.98."""
    return Taste(
        distance=rng.uniform(0.8, 1.8),
        front=rng.uniform(0.0, 0.6),
        closeness=rng.uniform(1.0, 3.0),
        crossing=rng.uniform(0.3, 3.0),
        crowding=rng.uniform(0.0, 1.5),
        bias=rng.uniform(-12, 12),
        contrast=rng.uniform(0.7, 1.3),
        noise=rng.uniform(4, 10),
    )


def disturbance(scene: Scene, taste: Taste) -> float:
    """Return the disturbance, 0 if nobody is disturbed and larger if more, before bias, contrast and noise."""
    people = np.array([(body.x, body.y, body.orientation) for body in scene.bodies if body.human]).reshape(-1, 3)
    away = np.linalg.norm(people[:, :2], axis=1)
    turn = np.radians(people[:, 2])
    ahead = -(people[:, 0] * np.sin(turn) - people[:, 1] * np.cos(turn)) / np.maximum(away, 1e-9)
    intrusion = np.exp(-((away / (taste.distance * (1 + taste.front * ahead))) ** 2))
    places = np.array([(body.x, body.y) for body in scene.bodies])
    crossed = max((_passage(places[first], places[second]) for first, second in scene.links), default=0.0)
    crowd = min((away < CROWD_RADIUS).sum() / CROWD, 1.0)
    return float(taste.closeness * intrusion.sum() + taste.crossing * crossed + taste.crowding * crowd)


def rate(scene: Scene, taste: Taste, rng: np.random.Generator) -> int:
    """Return the score of a scene, a whole number from 0 (worst) to 100 (nobody is disturbed)."""
    pleased = 100 * np.exp(-disturbance(scene, taste))
    score = 50 + taste.bias + taste.contrast * (pleased - 50) + taste.noise * rng.standard_normal()
    return int(np.clip(np.rint(score), 0, 100))


def _passage(first: np.ndarray, second: np.ndarray) -> float:
    """1 if the robot, at the origin, stands on the line between two bodies, decreasing to 0 beside it."""
    line = second - first
    along = np.clip(-first @ line / max(line @ line, 1e-9), 0, 1)
    return float(np.exp(-(((first + along * line) ** 2).sum() / PASSAGE**2)))


def write_world(folder: Path, raters: Sequence[str], seed: int, *, scenes: int = 150) -> list[Path]:
    """Write ``<rater>.json`` for every rater into ``folder`` and return the paths.

    The files hold JSON lines in centimetres and degrees, as :mod:`fedapps.tasks.social.scenes` describes. Every rater
    rates ``scenes`` scenes, half of them common to all raters, in a different order. A rater's taste and scenes depend
    only on ``seed`` and the rater's name.

    Raises
    ------
    ValueError
        ``scenes < 1``.
    """
    if scenes < 1:
        raise ValueError(f"scenes = {scenes}: must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    shared = [(f"{i:05d} A", draw_scene(generator(seed, "social.scene", "shared", i))) for i in range(scenes // 2)]
    paths = []
    for number, rater in enumerate(raters):
        taste = draw_taste(generator(seed, "social.rater", rater))
        start = len(shared) + number * scenes
        of_rater = [
            (f"{start + i:05d} B", draw_scene(generator(seed, "social.scene", rater, i)))
            for i in range(scenes - len(shared))
        ]
        rng = generator(seed, "social.ratings", rater)
        seen = [*shared, *of_rater]
        lines = [
            json.dumps(_published(identifier, rate(scene, taste, rng), scene))
            for identifier, scene in (seen[index] for index in rng.permutation(len(seen)))
        ]
        path = folder / f"{rater}.json"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        paths.append(path)
    return paths


def _published(identifier: str, score: int, scene: Scene) -> dict[str, object]:
    bodies: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    for number, body in enumerate(scene.bodies, start=1):
        position = {"xPos": round(100 * body.x, 3), "yPos": round(100 * body.y, 3)}
        bodies[body.human].append({"id": number, **position, "orientation": body.orientation})
    links = []
    for first, second in scene.links:
        links.append([first + 1, second + 1, "interact"])
        if scene.bodies[second].human:  # the published files list a conversation from both sides
            links.append([second + 1, first + 1, "interact"])
    corners = [[round(100 * x), round(100 * y)] for x, y in scene.room.tolist()]
    return {
        "identifier": identifier,
        "score": score,
        "robot": {"id": 0},
        "humans": bodies[True],
        "objects": bodies[False],
        "links": links,
        "room": [*corners, corners[0]],
    }
