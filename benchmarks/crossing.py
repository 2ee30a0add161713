"""A robot crosses the ways of recorded pedestrians, with forecasts of trained models and without.

An encounter is a person of a recording who walks at least 2 m in 4.8 s. The robot starts 4 m beside the place that this
person reaches 3.2 s later, and its goal is 4 m on the other side. All people walk as they were recorded: they do not
react. Every 0.4 s the robot takes the velocity, of 49, whose path over 4.8 s costs least: the smallest distance to the
goal so far, as a mean over the path, plus :data:`RISK` times the square of what is missing to :data:`ROOM` between the
robot and a forecast person, as a mean over the samples. The robot reaches 1.5 m/s, and changes its velocity by 1.5 m/s
in a second.

Beside the models are people who stand still, who repeat their last step, and who walk as was recorded, the best
forecast there is.

    python -m benchmarks.crossing runs/pedestrians --people crowds_zara01.txt.xz --methods cloud,fedavg --seeds 3
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from fedapps.tasks.driving.options import WALKING_STEP
from fedapps.tasks.driving.pedestrians import read_tracks
from fedapps.tasks.driving.trained import DrivingTrained

import fedapps
from fedapps.base.options import split_names

from .commands import comparison_parser, run, show

HISTORY, HORIZON = 8, 12
MEETING = 8  # steps until the person is where the robot wants to cross
BESIDE, MOVED, ARRIVED = 4.0, 2.0, 0.5  # metres
FASTEST, PUSH = 1.5, 1.5 * WALKING_STEP  # m/s, also in a step
ROOM, RISK = 1.0, 20.0
NEAR = 0.5  # metres between the middles of two people who touch
LONGEST = 40  # steps
TARGETS = np.array(
    [(0.0, 0.0)]
    + [
        (speed * np.cos(angle), speed * np.sin(angle))
        for speed in (FASTEST / 3, FASTEST * 2 / 3, FASTEST)
        for angle in np.arange(16) * np.pi / 8
    ]
)
#: Paths ``[P, K, H, 2]`` of P people after the recording ``[T, P, 2]`` at step ``now``; NaN for those who are not seen.
Predictor = Callable[[np.ndarray, int], np.ndarray]


class Encounter(NamedTuple):
    """Where the robot starts, ``[2]``, and wants to go, and the step at which it starts."""

    start: np.ndarray
    goal: np.ndarray
    step: int


class Crossing(NamedTuple):
    """The smallest distance to anybody in m, and the seconds to the goal, at most 16."""

    distance: float
    seconds: float


def encounters(places: np.ndarray, count: int) -> list[Encounter]:
    """At most ``count`` encounters of a recording ``[T, P, 2]``, evenly spread over it, from both sides in turn."""
    found: list[Encounter] = []
    for now in range(HISTORY - 1, len(places) - HORIZON):
        for person in np.flatnonzero(np.isfinite(places[now - HISTORY + 1 : now + HORIZON + 1]).all(axis=(0, 2))):
            here, there = places[[now, now + MEETING], person]
            if np.linalg.norm(places[now + HORIZON, person] - here) < MOVED or not (there != here).any():
                continue
            along = (there - here) / np.linalg.norm(there - here)
            beside = BESIDE * np.array([along[1], -along[0]]) * (-1) ** len(found)
            if not _nearest(places[now], there + beside) < ROOM:
                found.append(Encounter(there + beside, there - beside, now))
    chosen = np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int)
    return [found[index] for index in chosen]


def cross(places: np.ndarray, encounter: Encounter, predict: Predictor) -> Crossing:
    """Drive the robot of an encounter through a recording ``[T, P, 2]``."""
    position, velocity = encounter.start, np.zeros(2)
    distance = np.inf
    for step in range(min(LONGEST, len(places) - 1 - encounter.step)):
        now = encounter.step + step
        plans = rolled(position, velocity)
        best = int(np.argmin(costs(plans, encounter.goal, predict(places[: now + 1 + HORIZON], now))))
        velocity = (plans[best, 0] - position) / WALKING_STEP
        position = plans[best, 0]
        distance = min(distance, _nearest(places[now + 1], position))
        if np.linalg.norm(position - encounter.goal) < ARRIVED:
            return Crossing(distance, (step + 1) * WALKING_STEP)
    return Crossing(distance, LONGEST * WALKING_STEP)


def rolled(position: np.ndarray, velocity: np.ndarray) -> np.ndarray:
    """The paths ``[49, H, 2]`` of a robot that changes to each velocity and keeps it."""
    speeds, path = np.tile(velocity, (len(TARGETS), 1)), []
    where = np.tile(position, (len(TARGETS), 1))
    for _ in range(HORIZON):
        change = TARGETS - speeds
        length = np.linalg.norm(change, axis=1, keepdims=True)
        speeds = speeds + change * np.minimum(1.0, PUSH / np.maximum(length, 1e-9))
        where = where + speeds * WALKING_STEP
        path.append(where)
    return np.stack(path, axis=1)


def costs(plans: np.ndarray, goal: np.ndarray, people: np.ndarray) -> np.ndarray:
    """The cost ``[C]`` of each of ``plans [C, H, 2]`` beside sampled paths ``people [P, K, H, 2]``."""
    way = np.minimum.accumulate(np.linalg.norm(plans - goal, axis=2), axis=1).mean(axis=1)  # it may stop at the goal
    seen = people[np.isfinite(people).any(axis=(1, 2, 3))]
    gaps = np.nan_to_num(np.linalg.norm(plans[:, None, None] - seen[None], axis=4), nan=np.inf)
    missing = np.maximum(0.0, ROOM - gaps) ** 2
    return np.asarray(way + RISK * missing.mean(axis=2).sum(axis=(1, 2)))


def still(places: np.ndarray, now: int) -> np.ndarray:
    """Nobody moves."""
    return np.repeat(places[now][:, None, None], HORIZON, axis=2)


def constant_velocity(places: np.ndarray, now: int) -> np.ndarray:
    """Everybody repeats the last step; who has just come stands still."""
    step = np.nan_to_num(places[now] - places[max(now - 1, 0)])
    return np.asarray(still(places, now) + step[:, None, None] * np.arange(1.0, HORIZON + 1)[:, None])


def recorded(places: np.ndarray, now: int) -> np.ndarray:
    """Everybody walks as was recorded."""
    ahead = np.full((places.shape[1], HORIZON, 2), np.nan)
    known = places[now + 1 : now + 1 + HORIZON].transpose(1, 0, 2)
    ahead[:, : known.shape[1]] = known
    return ahead[:, None]


def of_model(model: DrivingTrained) -> Predictor:
    """The forecasts of a model; who was not seen long enough repeats the last step."""

    def predict(places: np.ndarray, now: int) -> np.ndarray:
        paths = model.forecast_people(places[now - HISTORY + 1 : now + 1])
        return np.where(np.isfinite(paths), paths, constant_velocity(places, now))

    return predict


def _nearest(places: np.ndarray, position: np.ndarray) -> float:
    distances = np.linalg.norm(places - position, axis=1)
    return float(np.nan_to_num(distances, nan=np.inf).min())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if an argument is invalid, else 0."""
    parser = comparison_parser("crossing", __doc__)
    parser.add_argument("--people", type=Path, required=True, help="file of the recording of the place left out")
    parser.add_argument("--methods", required=True, help="those whose shared models forecast")
    parser.add_argument("--encounters", type=int, default=100, help="at most (default 100)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    _, places = read_tracks(options.people)
    met = encounters(places, options.encounters)
    if not met:
        raise ValueError(f"--people {options.people}: nobody walks {MOVED:g} m within {HISTORY + HORIZON} steps")
    predictors: dict[str, list[Predictor]] = {
        "still": [still],
        "constant velocity": [constant_velocity],
        "recorded": [recorded],
    }
    for method in split_names(options.methods):
        models = [fedapps.load(options.comparison / f"{method}-{seed}", method) for seed in range(options.seeds)]
        predictors[method] = [of_model(model) for model in models if isinstance(model, DrivingTrained)]
    rows: list[dict[str, Any]] = []
    for name, of_seeds in predictors.items():
        driven = [[cross(places, encounter, predict) for encounter in met] for predict in of_seeds]
        rows.append(
            {
                "predictor": name,
                "encounters": len(met),
                "distance": [fmean(one.distance for one in of_seed) for of_seed in driven],
                "near": [fmean(one.distance < NEAR for one in of_seed) for of_seed in driven],
                "seconds": [fmean(one.seconds for one in of_seed) for of_seed in driven],
            }
        )
    show(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
