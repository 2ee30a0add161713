"""Recorded sessions of driving: where the cars went, and where the human was expected to go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .arrays import Array, Arrays

_ROBOT = re.compile(r"trace\.(\d+)\.robot")


@dataclass(frozen=True)
class DrivingTrace:
    """One session over T steps; positions are (x lateral, y longitudinal) in metres.

    Attributes:
        robot: [T, 2].
        human: [T, 2].
        gray: [T, 2], the car ahead of the human; None where there is none.
        predicted: [P, K, H, 2], K samples of the human's next H positions at P moments; P may be 0.
        predicted_at: [P], the steps at which they were drawn.
        start: the step at which the lane change starts; None where it never does.
    """

    robot: Array
    human: Array
    gray: Array | None
    predicted: Array
    predicted_at: npt.NDArray[np.int64]
    start: int | None


def read_traces(path: Path) -> dict[int, DrivingTrace]:
    """The sessions of a `traces.safetensors` by their numbers.

    Raises:
        ReportError: the file is no such archive, or an array is missing or has another shape.
    """
    arrays = Arrays(path)
    numbers = sorted(int(found.group(1)) for key in arrays if (found := _ROBOT.fullmatch(key)))
    return {number: _trace(arrays, f"trace.{number}.") for number in numbers}


def _trace(arrays: Arrays, prefix: str) -> DrivingTrace:
    robot = arrays.get(prefix + "robot", None, 2)
    steps = len(robot)
    forecasts = prefix + "predicted" in arrays
    predicted = arrays.get(prefix + "predicted", None, None, None, 2) if forecasts else np.empty((0, 0, 0, 2))
    predicted_at = arrays.get(prefix + "predicted_at", len(predicted)) if forecasts else np.empty(0)
    start = float(arrays.get(prefix + "lane_change_start")) if prefix + "lane_change_start" in arrays else -1.0
    return DrivingTrace(
        robot=robot,
        human=arrays.get(prefix + "human", steps, 2),
        gray=arrays.get(prefix + "gray", steps, 2) if prefix + "gray" in arrays else None,
        predicted=predicted,
        predicted_at=predicted_at.astype(np.int64),
        start=int(start) if 0 <= start < steps else None,
    )
