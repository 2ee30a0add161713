"""Recorded driving sessions: the paths of the cars and the forecasts of the human's path."""

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
    """One session of T steps. Positions are (x lateral, y longitudinal) in metres.

    Attributes
    ----------
    robot, human : ndarray of shape [T, 2]
        Paths of the robot and the human driver.
    gray : ndarray of shape [T, 2] or None
        Path of the car ahead of the human, if there is one.
    predicted : ndarray of shape [P, K, H, 2]
        K sampled forecasts of the human's next H positions, made at P steps; P may be 0.
    predicted_at : ndarray of shape [P]
        The steps at which the forecasts were made.
    start : int or None
        Step at which the lane change starts; None if it never does.
    """

    robot: Array
    human: Array
    gray: Array | None
    predicted: Array
    predicted_at: npt.NDArray[np.int64]
    start: int | None


def read_traces(path: Path) -> dict[int, DrivingTrace]:
    """Read the sessions in a ``traces.safetensors``.

    Returns
    -------
    dict
        Sessions by number.

    Raises
    ------
    ReportError
        If the file is not a safetensors file, or an array is missing or has a wrong shape.
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
