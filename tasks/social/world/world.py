"""Writes simulated scenes and their ratings in the published format of SocNav1.

Raters have different tastes: what disturbs people when a robot is near, and how much.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.base.seeding import generator

from .scenes import Scene, draw_scene

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
        own = [
            (f"{start + i:05d} B", draw_scene(generator(seed, "social.scene", rater, i)))
            for i in range(scenes - len(shared))
        ]
        rng = generator(seed, "social.ratings", rater)
        seen = [*shared, *own]
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
