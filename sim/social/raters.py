"""Simulated raters with different tastes: what disturbs people when a robot is near, and how much."""

from dataclasses import dataclass

import numpy as np

from .scenes import Scene

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
